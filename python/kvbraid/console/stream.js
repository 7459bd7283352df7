// What the server shows, kept up to date by GET /v1/events: differences come in, a state is there.
// While the page is hidden nothing is asked; a stream that ends is asked for again, ever more slowly.
// A key stays in its tab, and goes with each question. EventSource could not send it, so fetch reads.

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 10_000;
const STALE_S = 5; // The server tells something each second, even if nothing has changed.
const MOST_REQUESTS = 500;
const KEY = "kvbraid-key";
const ABOUT_KEYS = ["unauthorized", "right_missing"];

export const live = {
  pods: new Map(),
  requests: new Map(),
  intervals: new Map(),
  models: [],
  status: "connecting",
  hasData: false,
  refused: null, // The error of an answer that needs a key, or another one.
  rate: 0, // Changes of requests a second.
};

let topics, changed, timer;
let reading = null; // Aborts the stream that is open or being opened.
let retryMs = FIRST_RETRY_MS;
let heardMs = performance.now();
let nowS = 0;

// wanted: which topics are asked for; draw: called after each change, also of `status`.
export function start(wanted, draw) {
  [topics, changed] = [wanted, draw];
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : open()));
  addEventListener("pagehide", pause);
  addEventListener("pageshow", open);
  open();
}

export const redraw = () => changed();

export const silenceS = () => (performance.now() - heardMs) / 1000;

// The server's clock, as far as it is known; it goes on when nothing is heard, so ages grow.
export const now = () => nowS + silenceS();

export const isStale = () => live.hasData && !live.refused && live.status !== "hidden" && silenceS() > STALE_S;

export const key = () => sessionStorage.getItem(KEY);

export function useKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
  retryNow();
}

// Fetch with the key; throws the error of an answer that is one.
export async function request(path, options = {}) {
  const headers = key() ? { ...options.headers, authorization: `Bearer ${key()}` } : options.headers;
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const { error } = await answer.json();
  if (ABOUT_KEYS.includes(error.code)) live.refused = error;
  throw error;
}

async function open() {
  clearTimeout(timer);
  if (reading || document.hidden) return;
  const mine = (reading = new AbortController());
  live.refused = null;
  changed();
  await request(`/v1/events?topics=${topics}`, { signal: mine.signal }).then(read).catch(() => {}); // It is asked again.
  if (reading === mine) lose();
}

async function read(answer) {
  const parts = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await parts.read();
    if (done) return;
    const messages = (text + value).split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const [topic, data] = message.split("\n").map((line) => line.slice(line.indexOf(" ") + 1));
      take(topic, JSON.parse(data));
    }
  }
}

function close() {
  clearTimeout(timer);
  reading?.abort();
  reading = null;
}

function pause() {
  close();
  live.status = "hidden";
}

function lose() {
  reading = null;
  live.status = live.refused ? "refused" : "lost";
  if (!live.refused) timer = setTimeout(open, retryMs);
  retryMs = Math.min(2 * retryMs, LAST_RETRY_MS);
  changed();
}

export function retryNow() {
  close();
  open();
}

function take(topic, told) {
  live.status = "live";
  live.hasData = true;
  retryMs = FIRST_RETRY_MS;
  heardMs = performance.now();
  nowS = told.now_s;
  TAKES[topic](told);
  changed();
}

export const keyOf = ({ pod, dp_rank }) => `${dp_rank} ${pod}`;

const TAKES = {
  pods(told) {
    if (told.is_whole) live.pods.clear();
    live.memoryBytes = told.memory_bytes;
    for (const row of told.changed) {
      const key = keyOf(row);
      live.pods.set(key, { ...live.pods.get(key), ...row });
    }
    for (const [pod, dp_rank] of told.gone) live.pods.delete(keyOf({ pod, dp_rank }));
  },
  requests(told) {
    if (told.is_whole) live.requests.clear();
    live.keepsPrompts = told.keeps_prompts;
    live.rate = told.num_changed;
    for (const row of told.changed) live.requests.set(row.request, row);
    if (live.requests.size > MOST_REQUESTS) {
      live.requests = new Map(newest().slice(0, MOST_REQUESTS).map((row) => [row.request, row]));
    }
  },
  ladder(told) {
    if (told.is_whole) live.intervals.clear();
    live.models = told.models;
    live.intervalS = told.interval_s;
    for (const row of told.intervals) live.intervals.set(`${row.begin_s} ${row.model}`, row);
    const first = told.now_s - 3600;
    for (const [key, row] of live.intervals) if (row.begin_s < first) live.intervals.delete(key);
  },
  policy: (told) => (live.policy = told.answer ?? live.policy),
  config: (told) => (live.config = told.answer ?? live.config),
};

export const newest = () => [...live.requests.values()].sort((a, b) => b.decided_s - a.decided_s);
