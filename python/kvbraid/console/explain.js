// Explain: what each pod holds of a prompt, as strips; where all its groups agree; what is missing.

import { html, nothing, svg } from "./vendor/lit-html/lit-html.js";
import { bounds, count, counted, tokens, words } from "./format.js";
import { ask, asked, chooser, dim, empty, long, more, name, ofRequest, portion, rank, state, stay } from "./parts.js";
import { live, newest, redraw, request } from "./stream.js";

export const topics = ["requests"];
export const drawsWithoutData = true;
export const data = () => (asked("request") ? ofRequest("/explain.json") : "/requests.json");

const PORTION = 20;
let told = null; // The answer, or {error}.
let when = 0;
let isAsking = false;
let wanted = null; // The request that was asked about last.

const CELLS = { "#": "held", "+": "partly", ".": "missing" };

async function take(answer) {
  isAsking = true;
  redraw();
  try {
    told = await (await answer()).json();
  } catch (error) {
    told = { error: error.remedy ? error : { message: `The server does not answer: ${error.message}.`, remedy: "Try again once it is back." } };
  }
  when = performance.now();
  isAsking = false;
  redraw();
}

const askKept = (id) => take(() => request(ofRequest("/v1/strips", id)));

const post = (path, body) => request(path, { method: "POST", headers: { "content-type": "application/json" }, body });

// What a prompt is: token ids, messages of a chat, or a text, which the server makes token ids of.
async function ids(model, prompt) {
  if (/^[\s\d,[\]]+$/.test(prompt)) return prompt.match(/\d+/g) ?? []; // As text: they may be larger than a Number.
  const of = prompt.trimStart().startsWith("[{") ? `"messages":${prompt}` : `"prompt":${JSON.stringify(prompt)}`;
  return (await (await post("/v1/tokens", `{"model":${model},${of}}`)).json()).token_ids;
}

function askPrompt({ elements }) {
  const model = JSON.stringify(elements.model.value);
  wanted = "";
  ask("request", "");
  take(async () => post("/v1/strips", `{"model":${model},"token_ids":[${await ids(model, elements.prompt.value)}]}`));
}

export function view() {
  const id = asked("request");
  if (id && id !== wanted) askKept((wanted = id));
  return html`${form(id)}
    <div aria-live="polite" aria-busy=${isAsking}>${isAsking ? html`<p class="dim">Asking.</p>` : told ? answer() : empty("Nothing is explained yet.", "Choose one of the last requests, or paste a prompt.", "An engine gives its token ids at /tokenize, or vLLM at /v1/chat/completions/render.")}</div>`;
}

function form(id) {
  const kept = newest().filter((row) => row.has_prompt).slice(0, 50);
  const options = id && !kept.some((row) => row.request === id) ? [{ request: id }, ...kept] : kept;
  const models = new Set([...live.requests.values()].map((row) => row.model));
  return html`<div class="columns">
    <form class="panel" @submit=${stay}>
      <h2>One of the last requests</h2>
      ${options.length ? html`${chooser("Request", "request", [["", "choose one"], ...options.map((row) => [row.request, `${row.request}${row.model ? `: ${row.model}, ${tokens(row.num_tokens)}` : ""}`.slice(0, 120)])])}
      <p class="dim">It is explained as it would be answered now.</p>
      <button type="button" ?disabled=${!id} @click=${() => askKept(id)}>Explain again</button>`
      : html`<p>${live.hasData && live.keepsPrompts === false ? "Prompts are not kept. Set prompts = true under [console] in fleet.toml, and restart the server." : "No request with a prompt is kept yet."}</p>`}
    </form>
    <form class="panel" @submit=${(event) => { stay(event); askPrompt(event.target); }}>
      <h2>A prompt</h2>
      <label>Model <input name="model" required list="models" autocomplete="off"></label>
      <datalist id="models">${[...models].map((model) => html`<option value=${model}></option>`)}</datalist>
      <label>Token ids, text, or messages <textarea name="prompt" rows="3" required spellcheck="false" placeholder="1, 2, 3, …"></textarea></label>
      <button>Explain</button>
    </form>
  </div>`;
}

function answer() {
  if (told.error) return html`<div class="banner" role="alert">${told.error.message} <span>${told.error.remedy}</span></div>`;
  const pods = [...told.pods].sort((a, b) => b.lower - a.lower || b.upper - a.upper);
  const at = new Date(Date.now() - (performance.now() - when)).toLocaleTimeString();
  return html`<section>
    <div class="heading"><h2>${name(told.model)}, ${tokens(told.num_tokens)} ${dim(`asked at ${at}`)}</h2></div>
    ${legend()}
    ${pods.length ? nothing : empty("No pod serves this model.")}
    ${portion(pods, PORTION).map(pod)}
    ${more(pods, PORTION)}
  </section>`;
}

const LEGEND = { held: "held", partly: "some of it", missing: "not held", tick: "the group accepts a boundary here", common: "every group does", end: "reusable up to here" };

const legend = () => html`<ul class="legend inline">${Object.entries(LEGEND).map(([kind, what]) => html`<li><span class="key ${kind}"></span>${what}</li>`)}</ul>`;

function pod(row) {
  return html`<article class="panel">
    <div class="heading"><h3>${rank(row)} ${state(row.state)}</h3><p><b>${bounds(row.lower, row.upper)}</b> of ${tokens(told.num_tokens)} reusable</p></div>
    ${row.groups.length ? html`<div class="strips">${row.groups.map((group) => strip(row, group))}</div>` : html`<p class="dim">Its groups are not known yet: no event has told them.</p>`}
    ${row.reason ? html`<p>Why it is a bound: ${long(row.reason)}</p>` : nothing}
    <p>${further(row)}</p>
  </article>`;
}

const groupName = (group) => (group === null ? "the group" : `group ${group}`);

const WIDE = 1000; // The width of a strip in its own units.

function strip(row, group) {
  const cell = WIDE / group.cells.length;
  const mark = (kind, x, y, height, width) => svg`<rect class=${kind} x=${x - width / 2} y=${y} width=${width} height=${height}></rect>`;
  const blocks = `${counted(group.num_held, "block")} of ${tokens(group.block_size)} held`;
  const accepts = group.accepted === null ? "accepts every boundary" : `accepts boundaries in ${counted(group.accepted.length, "place")}`;
  const label = `${groupName(group.group)}, ${words(group.kind)}`;
  return html`<div class="strip">
    <p>${label}${group.window ? `, window of ${tokens(group.window)}` : ""} ${dim(`${blocks}; ${accepts}`)}</p>
    <svg viewBox="0 0 ${WIDE} 26" preserveAspectRatio="none" role="img" aria-label="${label}: ${blocks}; ${accepts}">
      ${runs(group.cells).map(([kind, from, width]) => svg`<rect class=${CELLS[kind]} x=${from * cell} y="2" width=${width * cell} height="15"></rect>`)}
      ${(group.accepted ?? []).map((number) => mark("tick", (number + 1) * cell, 19, 7, 3))}
      ${(row.common ?? []).map((number) => mark("common", (number + 1) * cell, 0, 19, 2))}
      ${row.lower > 0 ? mark("end", (cell * row.lower) / row.unit, 0, 26, 5) : nothing}
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

function further(row) {
  const lacks = row.missing;
  if (!lacks) return row.limiting ? html`The prefix ends at ${tokens(row.limiting.boundary)}.` : dim(`No group ends the prefix${row.lower === row.upper ? ": only the end of the prompt does" : ""}.`);
  const blocks = lacks.spans.map(([from, to]) => `${count(from)} to ${count(to)}`).join(", ");
  const rest = lacks.num_blocks && lacks.spans.length === 16 ? " and further ones" : "";
  const what = lacks.num_blocks ? html`needs ${counted(lacks.num_blocks, "block")} that it lacks: tokens ${blocks}${rest}` : html`holds what the boundary needs by its kind; the pod's alignment or the end of the prompt excludes it`;
  return html`For more, ${groupName(lacks.group)} ends the prefix: it refuses the boundary at ${tokens(lacks.boundary)}, where it ${what}.`;
}
