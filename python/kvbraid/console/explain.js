// Explain: what each pod holds of a prompt, as strips; where all its groups agree; what is missing.

import { html, nothing, svg } from "./vendor/lit-html/lit-html.js";
import { repeat } from "./vendor/lit-html/directives/repeat.js";
import { bounds, count, counted, tokens, words } from "./format.js";
import { ask, asked, empty, name, rank, state } from "./parts.js";

export const topics = ["requests"];
export const drawsWithoutData = true;
export const data = () => (asked("request") ? `/explain.json?request=${encodeURIComponent(asked("request"))}` : "/requests.json");

const PORTION = 20;
let most = PORTION;
let told = null; // The answer, or {error}.
let when = 0;
let isAsking = false;
let wanted = null; // The request that was asked about last.

const CELLS = { "#": "held", "+": "partly", ".": "missing" };

async function take(answer, redraw) {
  isAsking = true;
  redraw();
  try {
    const response = await answer();
    const body = await response.json();
    told = response.ok ? body : { error: body.error };
  } catch (error) {
    told = { error: { message: `The server does not answer: ${error.message}.`, remedy: "Try again once it is back." } };
  }
  when = performance.now();
  most = PORTION;
  isAsking = false;
  redraw();
}

const askKept = (id, redraw) => take(() => fetch(`/v1/strips?request=${encodeURIComponent(id)}`), redraw);

function askPrompt(form, redraw) {
  const ids = form.elements.ids.value.match(/\d+/g) ?? [];
  const body = `{"model": ${JSON.stringify(form.elements.model.value)}, "token_ids": [${ids.join(",")}]}`;
  ask("request", "");
  wanted = "";
  take(() => fetch("/v1/strips", { method: "POST", headers: { "content-type": "application/json" }, body }), redraw);
}

export function view(live, redraw) {
  const id = asked("request");
  if (id && id !== wanted) {
    wanted = id;
    askKept(id, redraw);
  }
  return html`${form(live, redraw)}
    <div aria-live="polite" aria-busy=${isAsking ? "true" : "false"}>${isAsking ? html`<p class="dim">Asking.</p>` : told ? answer(redraw) : empty("Nothing is explained yet.", "Choose one of the last requests, or paste the token ids of a prompt.", "An engine gives them at /tokenize, or vLLM at /v1/chat/completions/render.")}</div>`;
}

function form(live, redraw) {
  const kept = [...live.requests.values()].filter((row) => row.has_prompt).sort((a, b) => b.decided_s - a.decided_s).slice(0, 50);
  const id = asked("request");
  const choose = (event) => { ask("request", event.target.value); redraw(); };
  const options = id && !kept.some((row) => row.request === id) ? [{ request: id, model: "", num_tokens: null }, ...kept] : kept;
  const models = [...new Set([...live.requests.values()].map((row) => row.model))];
  return html`<div class="columns">
    <form class="panel" @submit=${(event) => event.preventDefault()}>
      <h2>One of the last requests</h2>
      ${options.length ? html`<label>Request <select name="request" @change=${choose}><option value="">choose one</option>${options.map((row) => html`<option value=${row.request} ?selected=${row.request === id}>${`${row.request}${row.model ? `: ${row.model}, ${tokens(row.num_tokens)}` : ""}`.slice(0, 120)}</option>`)}</select></label>
      <p class="dim">It is explained as it would be answered now.</p>
      <button type="button" ?disabled=${!id} @click=${() => askKept(id, redraw)}>Explain again</button>`
      : html`<p>${live.hasData && live.keepsPrompts === false ? "Prompts are not kept. Set prompts = true under [console] in fleet.toml, and restart the server." : "No request with a prompt is kept yet."}</p>`}
    </form>
    <form class="panel" @submit=${(event) => { event.preventDefault(); askPrompt(event.target, redraw); }}>
      <h2>A prompt</h2>
      <label>Model <input name="model" required list="models" autocomplete="off"></label>
      <datalist id="models">${models.map((model) => html`<option value=${model}></option>`)}</datalist>
      <label>Token ids <textarea name="ids" rows="3" required spellcheck="false" placeholder="1, 2, 3, …"></textarea></label>
      <button>Explain</button>
    </form>
  </div>`;
}

function answer(redraw) {
  if (told.error) return html`<div class="banner" role="alert">${told.error.message} <span>${told.error.remedy}</span></div>`;
  const pods = [...told.pods].sort((a, b) => b.lower - a.lower || b.upper - a.upper);
  const at = new Date(Date.now() - (performance.now() - when)).toLocaleTimeString();
  return html`<section>
    <div class="heading"><h2>${name(told.model)}, ${tokens(told.num_tokens)} <span class="dim">asked at ${at}</span></h2></div>
    ${legend()}
    ${pods.length ? nothing : empty("No pod serves this model.")}
    ${repeat(pods.slice(0, most), (row) => `${row.dp_rank} ${row.pod}`, (row) => pod(row))}
    ${pods.length > most ? html`<button type="button" @click=${() => { most += PORTION; redraw(); }}>Show more of ${counted(pods.length, "rank")}</button>` : nothing}
  </section>`;
}

const legend = () => html`<ul class="legend inline">
  <li><span class="key held"></span>held</li><li><span class="key partly"></span>some of it</li><li><span class="key missing"></span>not held</li>
  <li><span class="key tick"></span>the group accepts a boundary here</li><li><span class="key common"></span>every group does</li>
  <li><span class="key end"></span>reusable up to here</li></ul>`;

function pod(row) {
  return html`<article class="panel">
    <div class="heading"><h3>${rank(row)} ${state(row.state)}</h3><p><b>${bounds(row.lower, row.upper)}</b> of ${tokens(told.num_tokens)} reusable</p></div>
    ${row.groups.length ? html`<div class="strips">${row.groups.map((group) => strip(row, group))}</div>` : html`<p class="dim">Its groups are not known yet: no event has told them.</p>`}
    ${row.reason ? html`<p>Why it is a bound: ${name(row.reason, 1000)}</p>` : nothing}
    <p>${more(row)}</p>
  </article>`;
}

const groupName = (group) => (group === null ? "the group" : `group ${group}`);

const WIDE = 1000; // The width of a strip in its own units.

function strip(row, group) {
  const cell = WIDE / group.cells.length;
  const at = (boundary) => (cell * boundary) / row.unit;
  const mark = (kind, x, y, height, width) => svg`<rect class=${kind} x=${x - width / 2} y=${y} width=${width} height=${height}></rect>`;
  const blocks = `${counted(group.num_held, "block")} of ${tokens(group.block_size)} held`;
  const accepts = group.accepted === null ? "accepts every boundary" : `accepts boundaries in ${counted(group.accepted.length, "place")}`;
  const label = `${groupName(group.group)}, ${words(group.kind)}`;
  return html`<div class="strip">
    <p>${label}${group.window ? `, window of ${tokens(group.window)}` : ""} <span class="dim">${blocks}; ${accepts}</span></p>
    <svg viewBox="0 0 ${WIDE} 26" preserveAspectRatio="none" role="img" aria-label="${label}: ${blocks}; ${accepts}">
      ${runs(group.cells).map(([kind, from, width]) => svg`<rect class=${CELLS[kind]} x=${from * cell} y="2" width=${width * cell} height="15"></rect>`)}
      ${(group.accepted ?? []).map((number) => mark("tick", (number + 1) * cell, 19, 7, 3))}
      ${(row.common ?? []).map((number) => mark("common", (number + 1) * cell, 0, 19, 2))}
      ${row.lower > 0 ? mark("end", at(row.lower), 0, 26, 5) : nothing}
    </svg>
  </div>`;
}

// Neighbouring cells of one kind as [kind, first cell, number of cells].
function runs(cells) {
  const found = [];
  for (let at = 0; at < cells.length; at++) {
    const last = found.at(-1);
    if (last?.[0] === cells[at]) last[2]++;
    else found.push([cells[at], at, 1]);
  }
  return found;
}

function more(row) {
  const lacks = row.missing;
  if (!lacks) return row.limiting ? html`The prefix ends at ${tokens(row.limiting.boundary)}.` : html`<span class="dim">No group ends the prefix${row.lower === row.upper ? ": only the end of the prompt does" : ""}.</span>`;
  const blocks = lacks.spans.map(([from, to]) => `${count(from)} to ${count(to)}`).join(", ");
  const rest = lacks.num_blocks && lacks.spans.length === 16 ? " and further ones" : "";
  const what = lacks.num_blocks ? html`needs ${counted(lacks.num_blocks, "block")} that it lacks: tokens ${blocks}${rest}` : html`holds what the boundary needs by its kind; the pod's alignment or the end of the prompt excludes it`;
  return html`For more, ${groupName(lacks.group)} ends the prefix: it refuses the boundary at ${tokens(lacks.boundary)}, where it ${what}.`;
}
