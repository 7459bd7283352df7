// The frame of every page: where one can go, whether what is shown is fresh, and the page itself.

import { html, nothing, render } from "./vendor/lit-html/lit-html.js";
import { age } from "./format.js";
import { Live } from "./stream.js";

const PAGES = { fleet: "Fleet", requests: "Requests", explain: "Explain", ladder: "Ladder" };

const path = location.pathname.slice(1);
const here = path in PAGES ? path : "fleet";
const page = await import(`./${here}.js`);
document.title = `${PAGES[here]} · kvbraid`;

const STATUS = {
  connecting: "Connecting",
  live: "Live",
  hidden: "Paused",
  lost: "Not connected",
};

function status(live) {
  const stale = live.isStale() || live.status === "lost";
  return html`<p class="status ${stale ? "stale" : live.status}">
    <span role="status">${stale && live.status === "live" ? "No news" : STATUS[live.status]}</span>
    ${live.hasData ? html`<span class="dim">data ${age(live.silenceS())}</span>` : nothing}
  </p>`;
}

function banner(live) {
  if (!live.isStale() && !(live.status === "lost" && !live.hasData)) return nothing;
  const since = live.hasData ? `What is shown was true ${age(live.silenceS())}.` : "Nothing is known yet.";
  return html`<p class="banner" role="alert">The server does not answer. ${since} It is asked again by itself.
    <button type="button" @click=${() => live.retryNow()}>Ask now</button></p>`;
}

function frame(live) {
  return html`
    <a class="skip" href="#main">Skip to the page</a>
    <header>
      <a class="brand" href="/"><img src="/console/icon.svg" alt="" width="22" height="22">kvbraid</a>
      <nav aria-label="Pages">
        ${Object.entries(PAGES).map(([to, title]) => html`<a href="/${to}" aria-current=${to === here ? "page" : nothing}>${title}</a>`)}
      </nav>
      ${status(live)}
    </header>
    <main id="main" tabindex="-1" class=${live.isStale() ? "stale" : ""}>
      ${banner(live)}
      <div class="heading"><h1>${PAGES[here]}</h1><a class="dim" href=${page.data?.() ?? `/${here}.json`}>JSON</a></div>
      ${live.hasData || page.drawsWithoutData ? page.view(live, redraw) : html`<p class="empty">Waiting for the first answer.</p>`}
    </main>`;
}

let isAsked = false;
let drawnMs = 0;
const root = document.createElement("div");
document.body.append(root);

// Draws once however often it is asked for, and nothing while nobody looks.
function redraw() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    drawnMs = performance.now();
    render(frame(live), root);
    page.drawn?.(live);
  });
}

const live = new Live(page.topics, () => redraw());
setInterval(() => document.hidden || performance.now() - drawnMs < 900 || redraw(), 500); // Ages grow.
redraw();
