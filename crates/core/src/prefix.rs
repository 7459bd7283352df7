//! Our own key of a token prefix: a polynomial in a prime field.
//!
//! `key(L) = seed * R^L + sum((t_i + 1) * R^(L-1-i))  mod 2^61 - 1`
//!
//! Unlike a hash chained block by block, the key depends on the prefix alone, never on how the prefix
//! was cut: pods with different block sizes share one key space. Because the numbers form a field, a
//! span whose start is unknown has a [`Step`] that maps any start to its end. Steps can be composed
//! and inverted, so a whole subtree moves to its place without its tokens (`fleet::limbo` uses this).
//!
//! The base R is drawn at random (`secret`), and never shown: two different prefixes of at most L
//! tokens have one key for at most L of the 2^61 bases, whoever chose the prefixes.

use serde::{Deserialize, Serialize};

/// The field's prime, of the Mersenne kind, so that folding needs no division.
const P: u64 = (1 << 61) - 1;

/// Whether a number is a key, a summand of keys or a local part.
pub(crate) const fn is_key(number: u64) -> bool {
    number < P
}

/// The sum of two keys: adds marks to a local part, or a salt to a key.
#[must_use]
pub const fn plus(a: u64, b: u64) -> u64 {
    let s = a + b;
    if s >= P { s - P } else { s }
}

/// The inverse of [`plus`].
#[must_use]
pub const fn minus(a: u64, b: u64) -> u64 {
    if a >= b { a - b } else { a + P - b }
}

/// Folds a 128-bit value below 2^122 into the field.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low 61 bits are what is wanted"
)]
const fn fold(x: u128) -> u64 {
    let low = (x as u64) & P;
    let high = (x >> 61) as u64;
    let s = low + (high & P) + (high >> 61);
    if s >= P { s - P } else { s }
}

pub(crate) const fn mul(a: u64, b: u64) -> u64 {
    fold(a as u128 * b as u128)
}

const fn pow(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = mul(result, base);
        }
        base = mul(base, base);
        exponent >>= 1;
    }
    result
}

/// Maps any 64-bit value into the field, well mixed (the finaliser of splitmix64).
#[must_use]
pub const fn scatter(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    x % P
}

/// The key of a prefix, below 2^61.
pub type PrefixKey = u64;

/// What a span of tokens does to the key of the prefix before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// Tokens in the span.
    pub tokens: u32,
    /// The key that the span would have from an all-zero start.
    pub local: u64,
}

impl Step {
    /// The span of no tokens.
    pub const NONE: Self = Self {
        tokens: 0,
        local: 0,
    };
}

/// The base of the keys, with its inverse. Everything that composes steps has a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyField {
    base: u64,
    inverse: u64,
}

impl KeyField {
    /// The keys over a base: any number, but only those from 2 to P - 2 differ.
    #[must_use]
    pub const fn new(base: u64) -> Self {
        let base = 2 + base % (P - 3);
        let inverse = pow(base, P - 2);
        Self { base, inverse }
    }

    /// The key at the end of a span, given the key at its start.
    #[must_use]
    pub const fn apply(self, step: Step, start: PrefixKey) -> PrefixKey {
        plus(mul(start, pow(self.base, step.tokens as u64)), step.local)
    }

    /// The key at the start of a span, given the key at its end.
    #[must_use]
    pub const fn undo(self, step: Step, end: PrefixKey) -> PrefixKey {
        let shift = pow(self.inverse, step.tokens as u64);
        mul(minus(end, step.local), shift)
    }

    /// One span, then the next.
    #[must_use]
    pub const fn then(self, first: Step, next: Step) -> Step {
        Step {
            tokens: first.tokens + next.tokens,
            local: self.apply(next, first.local),
        }
    }

    /// What must follow `first` to make `whole`, which must not be shorter.
    #[must_use]
    pub const fn rest_of(self, first: Step, whole: Step) -> Step {
        let tokens = whole.tokens - first.tokens;
        let shifted = mul(first.local, pow(self.base, tokens as u64));
        Step {
            tokens,
            local: minus(whole.local, shifted),
        }
    }

    /// The step of any span of tokens.
    #[must_use]
    pub fn step_of(self, tokens: &[u32]) -> Step {
        let mut local = 0;
        for &token in tokens {
            local = plus(mul(local, self.base), plus(u64::from(token), 1));
        }
        Step {
            tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            local,
        }
    }

    /// Takes a prefix so many tokens further, for ascending numbers of tokens.
    #[must_use]
    pub const fn further(self) -> Powers {
        Powers::of(self.base)
    }

    /// Takes a prefix so many tokens back, for ascending numbers of tokens.
    #[must_use]
    pub const fn back(self) -> Powers {
        Powers::of(self.inverse)
    }

    /// What an extra key adds to the local part of a span that ends `tokens_after` tokens later.
    #[must_use]
    pub const fn mark(self, extra: u64, tokens_after: u32) -> u64 {
        mul(extra, pow(self.base, tokens_after as u64))
    }
}

/// Powers of the base, or of its inverse, one after the other: the cost of a power is its distance
/// from the one before.
#[derive(Clone)]
pub struct Powers {
    base: u64,
    exponent: u32,
    power: u64,
}

impl Powers {
    const fn of(base: u64) -> Self {
        Self {
            base,
            exponent: 0,
            power: 1,
        }
    }

    /// A number times the power of this exponent, which must not be smaller than the last one.
    #[must_use]
    pub const fn times(&mut self, number: u64, exponent: u32) -> u64 {
        let further = pow(self.base, (exponent - self.exponent) as u64);
        self.exponent = exponent;
        self.power = mul(self.power, further);
        mul(number, self.power)
    }
}

/// Powers of the base for spans of up to one unit, made once per unit.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Tokens per unit.
    pub tokens: u32,
    /// The field of the steps.
    pub field: KeyField,
    powers: Vec<u64>,
    whole: u64,
}

impl Unit {
    /// Prepares steps of `tokens` tokens (at least 1).
    #[must_use]
    pub fn new(field: KeyField, tokens: u32) -> Self {
        let mut powers: Vec<u64> = Vec::with_capacity(tokens as usize);
        let mut power = 1;
        for _ in 0..tokens {
            powers.push(power);
            power = mul(power, field.base);
        }
        powers.reverse();
        Self {
            tokens,
            field,
            powers,
            whole: power,
        }
    }

    /// The local part of a chunk of at most one unit.
    #[must_use]
    pub fn local(&self, chunk: &[u32]) -> u64 {
        // Products are below 2^94, so that 2^28 of them fit one accumulator.
        let powers = &self.powers[self.powers.len() - chunk.len()..];
        let sum: u128 = chunk
            .iter()
            .zip(powers)
            .map(|(&t, &p)| (u128::from(t) + 1) * u128::from(p))
            .sum();
        fold(sum)
    }

    /// The key one whole unit further on.
    #[must_use]
    pub fn advance(&self, start: PrefixKey, local: u64) -> PrefixKey {
        plus(mul(start, self.whole), local)
    }

    /// Appends the key at every whole unit of `tokens` (not the start).
    pub fn keys(&self, seed: PrefixKey, tokens: &[u32], out: &mut Vec<PrefixKey>) {
        let mut key = seed;
        for chunk in tokens.chunks_exact(self.tokens as usize) {
            key = self.advance(key, self.local(chunk));
            out.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: KeyField = KeyField::new(0x1E37_79B9_7F4A_7C13);

    #[test]
    fn a_prefix_has_one_key_however_it_is_cut() {
        let tokens: Vec<u32> = (0..96).map(|i| i * 7919 % 50_000).collect();
        let mut fine = Vec::new();
        Unit::new(FIELD, 16).keys(5, &tokens, &mut fine);
        let mut coarse = Vec::new();
        Unit::new(FIELD, 48).keys(5, &tokens, &mut coarse);
        assert_eq!(fine[2], coarse[0]);
        assert_eq!(fine[5], coarse[1]);
        assert_eq!(FIELD.apply(FIELD.step_of(&tokens), 5), fine[5]);
    }

    #[test]
    fn steps_compose_invert_and_split() {
        let (a, b) = (
            FIELD.step_of(&[1, 2, 3]),
            FIELD.step_of(&[4, 0, 9, u32::MAX]),
        );
        let whole = FIELD.step_of(&[1, 2, 3, 4, 0, 9, u32::MAX]);
        assert_eq!(FIELD.then(a, b), whole);
        assert_eq!(FIELD.rest_of(a, whole), b);
        assert_eq!(FIELD.undo(whole, FIELD.apply(whole, 77)), 77);
        assert_eq!(FIELD.apply(Step::NONE, 77), 77);
    }

    #[test]
    fn a_mark_changes_the_key_at_its_token_and_every_later_one() {
        let tokens = [1, 2, 3, 4];
        let plain = FIELD.step_of(&tokens);
        // The mark on token 1 has two tokens after it.
        let marked = Step {
            local: plus(plain.local, FIELD.mark(99, 2)),
            ..plain
        };
        let split = Step {
            local: plus(FIELD.step_of(&[1, 2]).local, 99),
            tokens: 2,
        };
        assert_eq!(FIELD.then(split, FIELD.step_of(&[3, 4])), marked);
    }

    #[test]
    fn powers_in_turn_are_those_of_each_by_itself() {
        let (mut further, mut back) = (FIELD.further(), FIELD.back());
        for exponent in [0, 0, 1, 2, 16, 17, 17, 100_000] {
            let key = FIELD.mark(99, exponent);
            assert_eq!(further.times(99, exponent), key);
            assert_eq!(back.times(key, exponent), 99);
        }
    }

    #[test]
    fn every_base_is_one_that_separates() {
        for base in [0, 1, 2, P - 3, P - 2, P - 1, P, u64::MAX] {
            let field = KeyField::new(base);
            assert!((2..P - 1).contains(&field.base), "{base}");
            assert_eq!(mul(field.base, field.inverse), 1);
        }
    }

    #[test]
    fn golden_keys() {
        // The keys of one base, which is drawn anew elsewhere: the arithmetic must not change.
        let mut keys = Vec::new();
        Unit::new(FIELD, 4).keys(0, &[0, 1, 2, 3, 4, 5, 6, 7], &mut keys);
        assert_eq!(keys, GOLDEN);
    }
    const GOLDEN: [u64; 2] = [1_646_065_056_146_220_836, 1_835_511_744_839_152_427];
}
