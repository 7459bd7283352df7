// Numbers as people read them: each with its unit. Nothing here knows the page.

// Whole numbers in groups of three, without the data of all languages that a browser would load.
export const count = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

export const tokens = (n) => counted(n, "token");

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; n >= 1000 && unit < units.length - 1; unit++) n /= 1000;
  return `${unit && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

// A duration, down to microseconds; null is one that is not finite.
export function seconds(s) {
  if (s === null) return "∞";
  const size = Math.abs(s);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${(s * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${(s * 1e3).toFixed(size < 0.1 ? 1 : 0)} ms`;
  return `${Number.isInteger(s) ? s : s.toFixed(size < 10 ? 2 : 1)} s`;
}

const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

// How long ago something was; null: it never was.
export function age(s) {
  if (s === null || s === undefined) return "never";
  const [, size, unit] = STEPS.find(([below]) => s < below);
  const whole = Math.max(0, Math.floor(s / size));
  return whole === 0 ? "now" : `${whole} ${unit} ago`;
}

export const share = (part, whole) =>
  whole ? `${((100 * part) / whole).toFixed(part && part !== whole ? 1 : 0)} %` : "–";

export const bounds = (lower, upper) =>
  lower === upper ? count(lower) : `${count(lower)} to ${count(upper)}`;

// Tokens that nobody could have reused are no loss.
export const isLoss = ({ gap, reason }) => gap !== "above" && reason !== "never_seen" && reason !== "end_of_prompt";

export const words = (name) => name.replaceAll("_", " ");

// Each has at most what the one above it has.
export const RUNGS = { prompt: "Prompt", seen: "Ever seen", best: "Best pod", chosen: "Chosen pod", delivered: "Delivered" };

// The terms of a cost, and what each is (docs/routing.md).
export const TERMS = {
  wait: "wait for requests sent from here",
  others: "wait for requests of others",
  prefill: "its prefill",
  loading: "loading from slower tiers",
  decoding: "requests that decode meanwhile",
  potential: "what is present may become resumable",
  displacement: "work that delays and displaces others",
  queue: "work in this queue",
};
