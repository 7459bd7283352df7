// Policy: the rule that chooses ranks, what its terms weigh, and the coefficients of each model.

import { html } from "./vendor/lit-html/lit-html.js";
import { TERMS, count, counted, seconds, share } from "./format.js";
import { cards, dim, empty, name, sum, table } from "./parts.js";
import { live } from "./stream.js";

export const topics = ["policy", "requests"];

const LONG = 8000; // Tokens of the prompt that shows what coefficients come to.
const NUMBER = "number";

export function view() {
  const it = live.policy;
  const none = (key) => it[key] ?? "–";
  return html`${cards(
    ["Policy", it.policy, "[router] in fleet.toml"],
    ["Potential", none("potential"), "of what may become resumable"],
    ["Displacement", none("displacement"), "of work that displaces others"],
    ["Queue", none("queue"), "of work in a rank's own queue"],
    ["Slack", share(it.slack, 1), "above the least cost is as good"],
  )}
  <h2>What the terms weigh</h2>
  ${weights([...live.requests.values()].filter((row) => row.chosen.terms && row.runner_up?.terms))}
  <h2>What a prompt costs, by model</h2>
  ${it.models.length ? table(COLUMNS, it.models, { kind: "stack lines" }) : empty("No model has been asked for yet.", "Its coefficients appear with its first request, or with [router.seconds.MODEL] in fleet.toml.")}
  <p class="dim">What each means, and how to fit them: docs/routing.md.</p>`;
}

// A term decides where without it the runner-up would have cost less.
function decides(row, key) {
  const margin = row.runner_up.cost - row.chosen.cost;
  return margin >= 0 && margin < row.runner_up.terms[key] - row.chosen.terms[key];
}

function weights(rows) {
  if (!rows.length) return empty("No request with two ranks and terms in seconds is among the last.");
  const mean = (rank) => (key) => seconds(sum(rows, (row) => row[rank].terms[key]) / rows.length);
  return table([
    ["Term", (key) => html`${key} ${dim(TERMS[key])}`],
    ["Chosen rank, mean", mean("chosen"), NUMBER],
    ["Runner-up, mean", mean("runner_up"), NUMBER],
    ["It decides", (key) => share(sum(rows, (row) => decides(row, key)), rows.length), NUMBER],
  ], Object.keys(TERMS), { caption: `The last ${counted(rows.length, "request")} with two ranks` });
}

const off = (error, { took_s: took }) => html`${seconds(error)} ${dim(`of ${seconds(took)}`)}`;
const fitted = (of) => ({ fit }) => (fit?.num_samples ? of(fit) : dim("–"));

const COLUMNS = [
  ["Model", (row) => name(row.model)],
  ["Coefficients", (row) => row.origin],
  ["A prefill", (row) => seconds(row.fixed), NUMBER],
  ["1000 tokens", (row) => seconds(1e3 * row.per_token), NUMBER],
  ["10⁶ pairs", (row) => seconds(1e6 * row.per_pair), NUMBER],
  [`${count(LONG)} tokens in all`, (row) => seconds(row.fixed + LONG * row.per_token + (LONG * LONG * row.per_pair) / 2), NUMBER],
  ["Ranks busy", (row) => share(row.busy, 1), NUMBER],
  ["A second displaces", (row) => (row.displacement === null ? dim("–") : seconds(row.displacement)), NUMBER],
  ["Samples", ({ fit }) => (fit ? html`${count(fit.num_kept)}${fit.num_samples ? "" : dim(" too few yet")}` : dim("not fitted")), NUMBER],
  ["Fit is off by", fitted((fit) => off(fit.error_s, fit)), NUMBER],
  ["Expected was off by", fitted((fit) => off(fit.expected_error_s, fit)), NUMBER],
];
