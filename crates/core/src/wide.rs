//! Token ids that 32 bits cannot hold.
//!
//! SGLang stands media in by numbers of up to 62 bits, TensorRT-LLM by texts. Tokens are kept as 32 bits
//! each, because nearly all of them fit and every token is read many times. What a wide one has besides
//! stands apart, with its position: a list that is empty for nearly every store and request, which then
//! pay nothing.
//!
//! A wide number adds its upper half, times a second secret number S, to the key where its lower half
//! stands. The key of a prefix is then a polynomial of two unknowns, the base R and S:
//!
//! `key(L) = seed * R^L + sum((low_i + 1 + high_i * S) * R^(L-1-i))  mod 2^61 - 1`
//!
//! All coefficients are below the prime, so two different lists of tokens have two different polynomials,
//! of a degree of at most L. Whoever chose the tokens, both polynomials have one value for at most a share
//! of L / 2^61 of all pairs of R and S (Schwartz and Zippel): what `prefix` promises for numbers of 32
//! bits. To fold 64 bits into 32 would not do, because two images would then share a number by accident
//! once in 2^16 images. A text adds the number that `secret` makes of it, as the identifiers of media do.

/// What a token id has besides the 32 bits that are kept in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WideToken<'a> {
    /// The upper 32 bits of a number above `u32::MAX`; the lower ones are in its place.
    High(u32),
    /// A text, which is not empty; 0 is in its place.
    Text(&'a str),
}

/// A wide token, and the index of its place in a list of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WideAt<'a> {
    /// The index of its place.
    pub at: u32,
    /// What it has besides.
    pub token: WideToken<'a>,
}

/// The lower 32 bits of a number, which are kept in its place, and the rest of it if it is wide.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the number is cut in two")]
pub const fn halves(number: u64) -> (u32, Option<WideToken<'static>>) {
    let high = (number >> 32) as u32;
    let rest = if high == 0 {
        None
    } else {
        Some(WideToken::High(high))
    };
    (number as u32, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_above_32_bits_have_an_upper_half() {
        assert_eq!(halves(0), (0, None));
        assert_eq!(halves(u64::from(u32::MAX)), (u32::MAX, None));
        assert_eq!(halves(1 << 32), (0, Some(WideToken::High(1))));
        assert_eq!(
            halves(u64::MAX),
            (u32::MAX, Some(WideToken::High(u32::MAX)))
        );
    }
}
