//! Common divisors and multiples of token counts.

/// The least common multiple. If it exceeds every possible token count, the result is the largest
/// multiple of the greatest common divisor that fits, which no hit can reach either.
#[must_use]
pub(super) fn lcm(values: impl Iterator<Item = u32> + Clone) -> u32 {
    let mut all = values.clone();
    let exact = all.try_fold(1u32, |a, b| (a / gcd(a, b)).checked_mul(b));
    exact.unwrap_or_else(|| {
        let step = values.fold(0, gcd).max(1);
        u32::MAX / step * step
    })
}

/// The greatest common divisor; `gcd(0, b) = b`.
#[must_use]
pub(super) const fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
