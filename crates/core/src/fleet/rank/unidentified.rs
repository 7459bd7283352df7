//! Blocks that a rank holds under names that no request has.

use crate::fleet::keys::prompt::Prompt;
use serde::{Deserialize, Serialize};

/// What a rank holds that its events do not name as requests do.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct Unidentified {
    /// Blocks of adapters that have a number alone.
    pub adapters: bool,
    /// Blocks of media of which it is not told where they begin.
    pub media: bool,
}

impl Unidentified {
    /// Whether this request may find more than its names show.
    pub(in crate::fleet) fn may_be_of(self, prompt: &Prompt<'_>) -> bool {
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let has_name = prompt.lora.is_some_and(|name| !is_number(name));
        (self.adapters && has_name) || (self.media && !prompt.media.is_empty())
    }
}
