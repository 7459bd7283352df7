// What the server shows, kept up to date by GET /v1/events: differences come in, a state is there.
// While the page is hidden nothing is asked; a stream that ends is asked for again, ever more slowly.

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 10_000;
export const STALE_S = 5; // The server tells something each second, even if nothing has changed.
const MOST_REQUESTS = 500;

const rankKey = (pod, rank) => `${rank} ${pod}`;

export class Live {
  // topics: which parts are asked for; changed: called after each change, also of `status`.
  constructor(topics, changed) {
    this.topics = topics;
    this.pods = new Map();
    this.requests = new Map();
    this.intervals = new Map();
    this.models = [];
    this.status = "connecting";
    this.hasData = false;
    this.rate = 0; // Changes of requests a second.
    this.changed = changed;
    this.retryMs = FIRST_RETRY_MS;
    this.heardMs = performance.now();
    this.nowS = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.open()));
    addEventListener("pagehide", () => this.pause());
    addEventListener("pageshow", () => this.open());
    this.open();
  }

  // The server's clock, as far as it is known; it goes on when nothing is heard, so ages grow.
  now() {
    return this.nowS + (performance.now() - this.heardMs) / 1000;
  }

  silenceS() {
    return (performance.now() - this.heardMs) / 1000;
  }

  isStale() {
    return this.hasData && this.status !== "hidden" && this.silenceS() > STALE_S;
  }

  open() {
    clearTimeout(this.timer);
    if (this.source || document.hidden) return;
    const source = (this.source = new EventSource(`/v1/events?topics=${this.topics.join(",")}`));
    for (const topic of this.topics) {
      source.addEventListener(topic, (event) => this.take(topic, JSON.parse(event.data)));
    }
    source.onerror = () => this.lose();
    this.changed();
  }

  pause() {
    this.close();
    clearTimeout(this.timer);
    this.status = "hidden";
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  lose() {
    this.close();
    this.status = "lost";
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.retryMs);
    this.retryMs = Math.min(2 * this.retryMs, LAST_RETRY_MS);
    this.changed();
  }

  retryNow() {
    this.close();
    this.open();
  }

  take(topic, told) {
    this.status = "live";
    this.hasData = true;
    this.retryMs = FIRST_RETRY_MS;
    this.heardMs = performance.now();
    this.nowS = told.now_s;
    TAKES[topic](this, told);
    this.changed();
  }
}

const TAKES = {
  pods(live, told) {
    if (told.is_whole) live.pods.clear();
    live.memoryBytes = told.memory_bytes;
    for (const row of told.changed) {
      const key = rankKey(row.pod, row.dp_rank);
      live.pods.set(key, { ...live.pods.get(key), ...row });
    }
    for (const [pod, rank] of told.gone) live.pods.delete(rankKey(pod, rank));
  },
  requests(live, told) {
    if (told.is_whole) live.requests.clear();
    live.keepsPrompts = told.keeps_prompts;
    live.rate = told.num_changed;
    for (const row of told.changed) live.requests.set(row.request, row);
    if (live.requests.size > MOST_REQUESTS) {
      const newest = [...live.requests.values()].sort((a, b) => b.decided_s - a.decided_s);
      live.requests = new Map(newest.slice(0, MOST_REQUESTS).map((row) => [row.request, row]));
    }
  },
  ladder(live, told) {
    if (told.is_whole) live.intervals.clear();
    live.models = told.models;
    live.intervalS = told.interval_s;
    for (const row of told.intervals) live.intervals.set(`${row.begin_s} ${row.model}`, row);
    const first = told.now_s - 3600;
    for (const [key, row] of live.intervals) if (row.begin_s < first) live.intervals.delete(key);
  },
};
