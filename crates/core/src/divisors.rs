//! Common divisors and multiples of token counts.

use std::ops::Rem;

/// The least common multiple. If it exceeds every possible token count, the result is the largest
/// multiple of the greatest common divisor that fits, which no hit can reach either.
#[must_use]
pub(crate) fn lcm(values: impl Iterator<Item = u32> + Clone) -> u32 {
    let mut all = values.clone();
    let exact = all.try_fold(1u32, |a, b| (a / gcd(a, b)).checked_mul(b));
    exact.unwrap_or_else(|| {
        let step = values.fold(0, gcd).max(1);
        u32::MAX / step * step
    })
}

/// The greatest common divisor; `gcd(0, b) = b`.
#[must_use]
pub(crate) fn gcd<T: Copy + Default + PartialEq + Rem<Output = T>>(mut a: T, mut b: T) -> T {
    while b != T::default() {
        (a, b) = (b, a % b);
    }
    a
}
