// Requests: the last decisions as they are made, why the rank was chosen, and what was delivered.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { RUNGS, TERMS, bounds, count, counted, isLoss, seconds, share, tokens, words } from "./format.js";
import { ago, ask, asked, bar, cards, chooser, dim, empty, filters, finder, isFound, more, name, ofRequest, portion, rank, state, stay, sum, table } from "./parts.js";
import { live, newest, redraw, request } from "./stream.js";

export const topics = ["requests"];
export const data = () => ofRequest("/requests.json");

const PORTION = 25; // Most are others each second, and a table is laid out as a whole.
let frozen = null; // The rows while they are held still.
let kept = null; // The chosen request, also when it is no longer among the last.
let sought; // The one that a link names, while the server is asked for it.

const seek = () => request(ofRequest("/v1/requests")).then((answer) => answer.json()).then(({ requests: [row] }) => {
  [kept, sought] = [row, ""];
  redraw();
}, () => {});

export function view() {
  if (!live.requests.size) {
    return empty(
      "No request has been decided yet.",
      "Requests appear here once ranks are chosen: by kvbraid route, by kvbraid pick-serve, or by a data plane that asks POST /v1/pick.",
      "If console.requests is 0 in fleet.toml, none are kept.",
    );
  }
  const all = frozen ?? newest();
  const [status, chosen] = [asked("status"), asked("request")];
  const found = all.filter((row) => (!status || row.status === status) && isFound(row.request, row.model, row.chosen.pod));
  kept = live.requests.get(chosen) ?? kept;
  sought ??= chosen && !kept ? seek() : "";
  const hold = () => { frozen = frozen ? null : all; redraw(); };
  return html`
    ${summary()}
    ${filters(
      finder("request, pod or model"),
      chooser("Status", "status", [["", "all"], "decided", "started", "ended", "failed"]),
      html`<button type="button" aria-pressed=${!!frozen} @click=${hold}>${frozen ? "Held still" : "Hold still"}</button>`,
    )}
    ${chosen ? chosenOne(chosen) : nothing}
    ${table(COLUMNS, portion(found, PORTION), {
      kind: "stack lines",
      caption: counted(found.length, "request"),
      kindOf: (row) => (row.request === chosen ? "chosen" : nothing),
    })}
    ${more(found, PORTION, "request")}`;
}

function summary() {
  const rows = [...live.requests.values()];
  const ended = rows.filter((row) => row.delivered !== null);
  const prompts = sum(ended, (row) => row.num_tokens);
  return cards(
    ["Changes", `${count(live.rate)} a second`, "decided, started or ended"],
    ["Shown", counted(rows.length, "request"), `${count(ended.length)} reported`],
    ["As predicted", share(sum(ended, (row) => verdictOf(row) === "within"), ended.length), "delivered within the bounds"],
    ["Prompts reused", share(sum(ended, (row) => row.delivered), prompts), `of ${tokens(prompts)}`],
  );
}

const VERDICTS = { within: "✓", less: "less than predicted", more: "more than predicted" };

const verdictOf = (row) => (row.delivered < row.lower ? "less" : row.delivered > row.upper ? "more" : "within");

function verdict(row) {
  if (row.delivered === null) return nothing;
  const is = verdictOf(row);
  return html`<span class="verdict ${is}" title=${is === "within" ? "as predicted" : nothing}>${VERDICTS[is]}</span>`;
}

function link(row) {
  const isChosen = row.request === asked("request");
  const choose = (event) => { stay(event); ask("request", isChosen ? "" : row.request); };
  return html`<a href=${ofRequest("", row.request)} data-key=${row.request} aria-current=${isChosen ? "true" : nothing} @click=${choose}>${name(row.request, 14)}</a>`;
}

function lost(row) {
  const gap = row.ladder?.gaps.filter(isLoss).sort((a, b) => b.tokens - a.tokens)[0];
  return gap ? html`${words(gap.reason)} ${dim(count(gap.tokens))}` : dim(row.ladder ? "nothing lost" : "–");
}

function before({ chosen, runner_up: other }) {
  if (!other) return dim("no other rank");
  const margin = other.cost === null || chosen.cost === null ? null : other.cost - chosen.cost;
  return html`${seconds(margin)} ${dim(rank(other))}`;
}

const COLUMNS = [
  ["Request", link],
  ["Decided", (row) => html`${ago(row.decided_s)} <span class="tag ${row.status}">${row.status}</span>`],
  ["Model", (row) => name(row.model, 28)],
  ["Prompt, tokens", (row) => count(row.num_tokens), "number"],
  ["Pod", (row) => rank(row.chosen)],
  ["Predicted, tokens", (row) => bounds(row.lower, row.upper), "number"],
  ["Delivered, tokens", (row) => html`${row.delivered === null ? dim(row.status === "ended" ? "not reported" : "not yet") : count(row.delivered)} ${verdict(row)}`, "number"],
  ["Lost most to, tokens", lost],
  ["Before the runner-up", before],
];

function chosenOne(id) {
  const row = kept?.request === id ? kept : null;
  const close = html`<button type="button" @click=${() => ask("request", "")}>Close</button>`;
  return html`<section class="panel" aria-label="Chosen request">${row ? html`
    <div class="heading"><h2>${name(row.request)}</h2><span>${row.has_prompt ? html`<a href=${ofRequest("/explain", row.request)}>Explain</a> ` : nothing}${close}</span></div>
    <p>${name(row.model)}, ${tokens(row.num_tokens)}: sent to <b>${rank(row.chosen)}</b> ${ago(row.decided_s)}, ${row.status}${row.status === "decided" ? nothing : html` ${ago(row.changed_s)}`}.
    ${state(row.state)} Known by ${row.knowledge}; policy ${row.policy}, coefficients ${row.seconds}; ${counted(row.num_candidates, "candidate")}${leftOut(row)}.</p>
    <div class="columns">${costs(row)}${rungs(row)}</div>`
    : sought ? dim("Asking.") : html`${empty("This request is no longer among the last.", "Raise console.requests in fleet.toml to keep more of them.")}${close}`}</section>`;
}

const leftOut = (row) => [
  ...Object.entries(row.left_out).map(([filter, n]) => `; ${count(n)} left out: ${words(filter)}`),
  ...row.lifted.map((filter) => `; ${words(filter)} was lifted, since it would have left nobody`),
];

const SUMS = {
  all: (it) => seconds(it.cost),
  "reusable when it gets there": (it) => tokens(it.resumable),
  "present then": (it) => tokens(it.present),
  "in flight, without a first token": (it) => `${count(it.running)}, ${count(it.waiting)}`,
};

function costs(row) {
  if (!row.chosen.terms) return html`<div><h3>Cost</h3>${dim(`The policy ${row.policy} has no terms in seconds.`)}</div>`;
  const both = [row.chosen, row.runner_up].filter((it) => it?.terms);
  const most = Math.max(...both.flatMap((it) => Object.values(it.terms).map(Math.abs)), 1e-9);
  const term = (it, key) => html`${seconds(it.terms[key])}${bar([[it.terms[key] < 0 ? "won" : "held", Math.abs(it.terms[key]), key]], most, "")}`;
  const columns = [
    ["Term", ([key, what]) => html`${key} ${TERMS[key] ? dim(what) : nothing}`],
    ...both.map((it, at) => [html`${rank(it)}, ${at ? "runner-up" : "chosen"}`, ([key, of]) => (TERMS[key] ? term(it, key) : of(it)), "number"]),
  ];
  return html`<div><h3>Cost, in seconds</h3>${table(columns, Object.entries(TERMS), { kind: "small", foot: Object.entries(SUMS) })}</div>`;
}

function rungs(row) {
  if (!row.ladder) return html`<div><h3>Ladder</h3>${dim(row.status === "ended" ? "The prompt has no token ids here." : "It is there once the request's end is reported.")}</div>`;
  const { rungs: own, gaps } = row.ladder;
  const lost = (rung) => gaps.filter((gap) => gap.gap === rung || (rung === "delivered" && gap.gap === "above"));
  const columns = [
    ["Rung", ([, what]) => what],
    ["Tokens", ([rung, what]) => html`${own[rung] === null ? dim(rung === "seen" ? "not remembered" : "not reported") : count(own[rung])}${bar([["held", own[rung] ?? 0, what]], own.prompt, "")}`, "number"],
    ["Why less than the rung above", ([rung]) => lost(rung).map((gap) => html`<div>${gap.gap === "above" ? "+" : "−"}${count(gap.tokens)}: ${words(gap.reason)}</div>`)],
  ];
  return html`<div><h3>Ladder, in tokens</h3>${table(columns, Object.entries(RUNGS), { kind: "small" })}</div>`;
}
