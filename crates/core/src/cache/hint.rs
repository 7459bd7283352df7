//! What a caller says of the end of a request.

use crate::error::{Error, Result};

/// What a caller says of the end of a request: nothing, or one of five probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hint {
    /// Nothing is known.
    #[default]
    Unknown,
    /// Nobody will go on from there.
    No,
    /// A probability near 1/4.
    Unlikely,
    /// A probability near 1/2.
    Even,
    /// A probability near 3/4.
    Likely,
    /// Somebody will.
    Yes,
}

/// The hints that name a probability, at equal distances from 0 to 1.
pub(super) const HINTS: [Hint; 5] = [
    Hint::No,
    Hint::Unlikely,
    Hint::Even,
    Hint::Likely,
    Hint::Yes,
];

impl Hint {
    /// The hint that is nearest to a probability.
    ///
    /// # Errors
    /// `InvalidValue` for what is no probability.
    pub fn of(will_return: Option<f64>) -> Result<Self> {
        let Some(probability) = will_return else {
            return Ok(Self::Unknown);
        };
        if !(0.0..=1.0).contains(&probability) {
            return Err(Error::InvalidValue(format!(
                "will_return is {probability}; expected True, False, a probability from 0 to 1, \
                 or None if nothing is known"
            )));
        }
        let above = |hint: &Hint| probability >= hint.probability() - 0.125;
        Ok(HINTS.into_iter().rfind(above).unwrap_or(Self::No))
    }

    pub(super) fn probability(self) -> f64 {
        f64::from((self as u8).saturating_sub(1)) / 4.0
    }
}
