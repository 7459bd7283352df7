// Requests: the last decisions as they are made, why the rank was chosen, and what was delivered.

import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { bounds, count, counted, isLoss, seconds, share, tokens, words } from "./format.js";
import { ago, ask, asked, bar, card, chooser, empty, name, rank, state } from "./parts.js";

export const topics = ["requests"];

const PORTION = 50; // Rows are written anew in their places: most are others each second.
let frozen = null; // The rows while they are held still.
let kept = null; // The chosen request, also when it is no longer among the last.

// The terms of a cost, and what each is (docs/routing.md).
const TERMS = {
  wait: "wait for requests sent from here",
  others: "wait for requests of others",
  prefill: "its prefill",
  loading: "loading from slower tiers",
  decoding: "requests that decode meanwhile",
  potential: "what is present may become resumable",
  displacement: "work that delays and displaces others",
  queue: "work in this queue",
};

export function view(live, redraw) {
  if (!live.requests.size) {
    return empty(
      "No request has been decided yet.",
      "Requests appear here once ranks are chosen: by kvbraid route, by kvbraid pick-serve, or by a data plane that asks POST /v1/pick.",
      "If console.requests is 0 in fleet.toml, none are kept.",
    );
  }
  const all = frozen ?? [...live.requests.values()].sort((a, b) => b.decided_s - a.decided_s);
  const text = asked("find").toLowerCase();
  const status = asked("status");
  const found = all.filter((row) =>
    (!status || row.status === status) &&
    (!text || `${row.request} ${row.model} ${row.chosen.pod}`.toLowerCase().includes(text)));
  const shown = found.slice(0, PORTION);
  const chosen = asked("request");
  if (chosen && live.requests.has(chosen)) kept = live.requests.get(chosen);
  return html`
    ${summary(live)}
    <form class="filters" role="search" @submit=${(event) => event.preventDefault()}>
      <label>Find <input type="search" name="find" placeholder="request, pod or model" .value=${asked("find")} @input=${(event) => { ask("find", event.target.value); redraw(); }}></label>
      ${chooser("Status", status, [["", "all"], ...["decided", "started", "ended", "failed"].map((s) => [s, s])], (value) => { ask("status", value); redraw(); })}
      <button type="button" aria-pressed=${frozen ? "true" : "false"} @click=${() => { frozen = frozen ? null : all; redraw(); }}>${frozen ? "Held still" : "Hold still"}</button>
    </form>
    ${chosen ? chosenOne(live, chosen, redraw) : nothing}
    <div class="scroll"><table class="stack lines">
      <caption>${found.length > shown.length ? `The last ${PORTION} of ${counted(found.length, "request")} that match` : counted(found.length, "request")}</caption>
      <thead><tr><th scope="col">Request</th><th scope="col">Decided</th><th scope="col">Model</th><th scope="col" class="number">Prompt, tokens</th><th scope="col">Pod</th><th scope="col" class="number">Predicted, tokens</th><th scope="col" class="number">Delivered, tokens</th><th scope="col">Lost most to, tokens</th><th scope="col">Before the runner-up</th></tr></thead>
      <tbody>${shown.map((row) => line(live, row, chosen, redraw))}</tbody>
    </table></div>`;
}

function summary(live) {
  const rows = [...live.requests.values()];
  const ended = rows.filter((row) => row.delivered !== null);
  const exact = ended.filter((row) => row.lower <= row.delivered && row.delivered <= row.upper);
  const sum = (of) => ended.reduce((total, row) => total + of(row), 0);
  return html`<dl class="cards">
    ${card("Changes", `${count(live.rate)} a second`, "decided, started or ended")}
    ${card("Shown", counted(rows.length, "request"), `${count(ended.length)} reported`)}
    ${card("As predicted", share(exact.length, ended.length), "delivered within the bounds")}
    ${card("Prompts reused", share(sum((row) => row.delivered), sum((row) => row.num_tokens)), `of ${tokens(sum((row) => row.num_tokens))}`)}
  </dl>`;
}

const VERDICTS = {
  within: ["ok", "✓"],
  less: ["bad", "less than predicted"],
  more: ["odd", "more than predicted"],
};

function verdict(row) {
  if (row.delivered === null) return nothing;
  const is = row.delivered < row.lower ? "less" : row.delivered > row.upper ? "more" : "within";
  return html`<span class="verdict ${VERDICTS[is][0]}" title=${is === "within" ? "as predicted" : nothing}>${VERDICTS[is][1]}</span>`;
}

const largest = (row) => row.ladder?.gaps.filter(isLoss).sort((a, b) => b.tokens - a.tokens)[0];

function line(live, row, chosen, redraw) {
  const gap = largest(row);
  const choose = (event) => {
    event.preventDefault();
    ask("request", row.request === asked("request") ? "" : row.request);
    redraw();
  };
  return html`<tr class=${row.request === chosen ? "chosen" : ""}>
    <th scope="row"><a href="?request=${encodeURIComponent(row.request)}" aria-current=${row.request === chosen ? "true" : nothing} @click=${choose}>${name(row.request, 14)}</a></th>
    <td data-label="Decided">${ago(live, row.decided_s)} <span class="tag ${row.status}">${row.status}</span></td>
    <td data-label="Model">${name(row.model, 28)}</td>
    <td data-label="Prompt, tokens" class="number">${count(row.num_tokens)}</td>
    <td data-label="Pod">${rank(row.chosen)}</td>
    <td data-label="Predicted, tokens" class="number">${bounds(row.lower, row.upper)}</td>
    <td data-label="Delivered, tokens" class="number">${row.delivered === null ? html`<span class="dim">${row.status === "ended" ? "not reported" : "not yet"}</span>` : count(row.delivered)} ${verdict(row)}</td>
    <td data-label="Lost most to, tokens">${gap ? html`${words(gap.reason)} <span class="dim">${count(gap.tokens)}</span>` : html`<span class="dim">${row.ladder ? "nothing lost" : "–"}</span>`}</td>
    <td data-label="Before the runner-up">${before(row)}</td>
  </tr>`;
}

function before(row) {
  const other = row.runner_up;
  if (!other) return html`<span class="dim">no other rank</span>`;
  const margin = other.cost === null || row.chosen.cost === null ? null : other.cost - row.chosen.cost;
  return html`${seconds(margin)} <span class="dim">${rank(other)}</span>`;
}

function chosenOne(live, id, redraw) {
  const row = live.requests.get(id) ?? (kept?.request === id ? kept : null);
  const close = html`<button type="button" @click=${() => { ask("request", ""); redraw(); }}>Close</button>`;
  if (!row) return html`<section class="panel" aria-label="Chosen request">${empty("This request is no longer among the last.", "Raise console.requests in fleet.toml to keep more of them.")}${close}</section>`;
  return html`<section class="panel" aria-label="Chosen request">
    <div class="heading"><h2>${name(row.request)}</h2><span>${row.has_prompt ? html`<a href="/explain?request=${encodeURIComponent(row.request)}">Explain</a> ` : nothing}${close}</span></div>
    <p>${name(row.model)}, ${tokens(row.num_tokens)}: sent to <b>${rank(row.chosen)}</b> ${ago(live, row.decided_s)}, ${row.status}${row.status === "decided" ? nothing : html` ${ago(live, row.changed_s)}`}.
    ${state(row.state)} Known by ${row.knowledge}; policy ${row.policy}, coefficients ${row.seconds}; ${counted(row.num_candidates, "candidate")}${leftOut(row)}.</p>
    <div class="columns">${costs(row)}${rungs(row)}</div>
  </section>`;
}

function leftOut(row) {
  const out = Object.entries(row.left_out).map(([filter, n]) => `${count(n)} left out: ${words(filter)}`);
  const lifted = row.lifted.map((filter) => `${words(filter)} was lifted, since it would have left nobody`);
  const all = [...out, ...lifted];
  return all.length ? `; ${all.join("; ")}` : "";
}

const SUMS = {
  all: (it) => seconds(it.cost),
  "reusable when it gets there": (it) => tokens(it.resumable),
  "present then": (it) => tokens(it.present),
  "in flight, without a first token": (it) => `${count(it.running)}, ${count(it.waiting)}`,
};

function costs(row) {
  if (!row.chosen.terms) return html`<div><h3>Cost</h3><p class="dim">The policy ${row.policy} has no terms in seconds.</p></div>`;
  const both = [row.chosen, row.runner_up].filter((it) => it?.terms);
  const most = Math.max(...both.flatMap((it) => Object.values(it.terms).map(Math.abs)), 1e-9);
  const term = (it, key) => html`<td class="number">${seconds(it.terms[key])}${bar([[it.terms[key] < 0 ? "won" : "held", Math.abs(it.terms[key]), key]], most, "")}</td>`;
  return html`<div><h3>Cost, in seconds</h3><table class="small">
    <thead><tr><th scope="col">Term</th>${both.map((it, at) => html`<th scope="col" class="number">${rank(it)}, ${at ? "runner-up" : "chosen"}</th>`)}</tr></thead>
    <tbody>${Object.entries(TERMS).map(([key, what]) => html`<tr><th scope="row">${key} <span class="dim">${what}</span></th>${both.map((it) => term(it, key))}</tr>`)}</tbody>
    <tfoot>${Object.entries(SUMS).map(([what, of]) => html`<tr><th scope="row">${what}</th>${both.map((it) => html`<td class="number">${of(it)}</td>`)}</tr>`)}</tfoot>
  </table></div>`;
}

const RUNGS = { prompt: "the prompt", seen: "ever seen", best: "best pod", chosen: "chosen pod", delivered: "delivered" };

function rungs(row) {
  if (!row.ladder) return html`<div><h3>Ladder</h3><p class="dim">${row.status === "ended" ? "The prompt has no token ids here." : "It is there once the request's end is reported."}</p></div>`;
  const { rungs: own, gaps } = row.ladder;
  const lost = (rung) => gaps.filter((gap) => gap.gap === rung || (rung === "delivered" && gap.gap === "above"));
  return html`<div><h3>Ladder, in tokens</h3><table class="small">
    <thead><tr><th scope="col">Rung</th><th scope="col" class="number">Tokens</th><th scope="col">Why less than the rung above</th></tr></thead>
    <tbody>${Object.entries(RUNGS).map(([rung, what]) => html`<tr><th scope="row">${what}</th>
      <td class="number">${own[rung] === null ? html`<span class="dim">${rung === "seen" ? "not remembered" : "not reported"}</span>` : count(own[rung])}${bar([["held", own[rung] ?? 0, what]], own.prompt, "")}</td>
      <td>${lost(rung).map((gap) => html`<div>${gap.gap === "above" ? "+" : "−"}${count(gap.tokens)}: ${words(gap.reason)}</div>`)}</td></tr>`)}</tbody>
  </table></div>`;
}
