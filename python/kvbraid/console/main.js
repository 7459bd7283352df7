// The frame of every page: where one can go, whether what is shown is fresh, and the page itself.

import { html, nothing, render } from "./vendor/lit-html/lit-html.js";
import { age } from "./format.js";
import { empty, stay } from "./parts.js";
import { isStale, key, live, redraw, request, retryNow, silenceS, start, useKey } from "./stream.js";

const PAGES = ["Fleet", "Requests", "Explain", "Ladder", "Policy", "Config"];

const title = PAGES.find((it) => `/${it.toLowerCase()}` === location.pathname) ?? PAGES[0];
const here = title.toLowerCase();
const page = await import(`./${here}.js`);
document.title = `${title} · kvbraid`;

const STATUS = {
  connecting: "Connecting",
  live: "Live",
  hidden: "Paused",
  lost: "Not connected",
  refused: "No access",
};

function status() {
  const stale = isStale() || live.status === "lost";
  return html`<p class="status ${stale ? "stale" : live.status}">
    <span role="status">${stale && live.status === "live" ? "No news" : STATUS[live.status]}</span>
    ${live.hasData ? html`<span class="dim">data ${age(silenceS())}</span>` : nothing}
    ${key() ? html`<button type="button" @click=${() => useKey("")}>Forget the key</button>` : nothing}
  </p>`;
}

function banner() {
  if (!isStale() && !(live.status === "lost" && !live.hasData)) return nothing;
  const since = live.hasData ? `What is shown was true ${age(silenceS())}.` : "Nothing is known yet.";
  return html`<p class="banner" role="alert">The server does not answer. ${since} It is asked again by itself.
    <button type="button" @click=${retryNow}>Ask now</button></p>`;
}

const asksForKey = ({ code, message, remedy }) => html`<form class="panel" @submit=${(event) => { stay(event); useKey(event.target.elements.key.value.trim()); event.target.reset(); }}>
  <h2>This server asks for a key</h2>
  <p role="alert">${code !== "unauthorized" ? `${message}; ${remedy}.` : key() ? "The server does not know this key, or not any longer." : "What this page shows needs a key with the rights read and explain."}</p>
  <label>Key <input type="password" name="key" required autocomplete="off" spellcheck="false"></label>
  <p class="dim">It stays in this tab until that is closed, and goes to this server alone.</p>
  <button>Use this key</button>
</form>`;

// A link cannot send a key, so its JSON is fetched and shown from memory.
function openJson(event) {
  if (!key()) return;
  stay(event);
  request(event.target.href).then((answer) => answer.blob()).then((blob) => location.assign(URL.createObjectURL(blob)), redraw);
}

const shown = () =>
  live.refused ? asksForKey(live.refused) : live.hasData || page.drawsWithoutData ? page.view() : empty("Waiting for the first answer.");

const frame = () => html`
    <a class="skip" href="#main">Skip to the page</a>
    <header>
      <a class="brand" href="/"><img src="/console/icon.svg" alt="" width="22" height="22">kvbraid</a>
      <nav aria-label="Pages">
        ${PAGES.map((it) => html`<a href="/${it.toLowerCase()}" aria-current=${it === title ? "page" : nothing}>${it}</a>`)}
      </nav>
      ${status()}
    </header>
    <main id="main" tabindex="-1" class=${isStale() ? "stale" : ""}>
      ${banner()}
      <div class="heading"><h1>${title}</h1><a class="dim" href=${page.data?.() ?? `/${here}.json`} @click=${openJson}>JSON</a></div>
      ${shown()}
    </main>`;

let isAsked = false;
let drawnMs = 0;
const root = document.createElement("div");
document.body.append(root);

// Draws once however often it is asked for, and nothing while nobody looks.
function draw() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    drawnMs = performance.now();
    const focused = document.activeElement.dataset.key;
    render(frame(), root);
    // Rows are drawn in their places. One with the focus takes it along when it moves.
    if (focused && document.activeElement.dataset.key !== focused) {
      root.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    if (!live.refused) page.drawn?.();
  });
}

start(page.topics, draw);
setInterval(() => document.hidden || performance.now() - drawnMs < 900 || draw(), 500); // Ages grow.
