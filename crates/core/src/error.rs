//! Every error the core can return. The binding maps each variant to one Python class.

/// What went wrong, with the offending value, the state, and the remedy where one exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value outside what the operation accepts.
    #[error("{0}")]
    InvalidValue(String),
    /// A pod, model or group that was never registered.
    #[error("{0}")]
    Unknown(String),
    /// A request or a message larger than the configured limit.
    #[error("{0}")]
    TooLarge(String),
}

/// The result of every fallible function of the core.
pub type Result<T> = std::result::Result<T, Error>;
