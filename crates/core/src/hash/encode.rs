//! What a serialisation has to offer to carry a block: bytes, text, integers, nested tuples.
//!
//! The message of a block is written by one piece of code for every serialisation, so that the
//! order of its parts is stated once. Encoders reuse one buffer from block to block.

/// A serialisation of nested tuples, written front to back.
pub(super) trait Encode {
    /// Forgets the last message and begins a new one.
    fn start(&mut self);
    /// Begins a tuple of `len` elements, at least one.
    fn open(&mut self, len: usize);
    /// Ends the tuple of `len` elements opened last.
    fn close(&mut self, len: usize);
    /// A byte string.
    fn bytes(&mut self, value: &[u8]);
    /// A text whose value came with the request.
    fn text(&mut self, value: &str);
    /// A text that is a literal of the engine's program, hence one object however often it occurs.
    fn tag(&mut self, tag: Tag);
    /// An integer.
    fn int(&mut self, value: i64);
    /// The absent value.
    fn none(&mut self);
    /// The tuple of these integers; at least one.
    fn tokens(&mut self, tokens: &[u32]);
    /// Ends the message and shows its bytes.
    fn finish(&mut self) -> &[u8];
}

/// The first element of each extra key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Lora,
    Media,
    CacheSalt,
    PromptEmbeds,
}

impl Tag {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Lora => "lora",
            Self::Media => "mm",
            Self::CacheSalt => "cache_salt",
            Self::PromptEmbeds => "prompt_embeds",
        }
    }
}

/// Space for one integer written as a whole word of which only a part is kept.
pub(super) const WORD: usize = 8;

/// Writes one variable-width integer per token without a branch on its size: `word` gives the
/// bytes (left-aligned in memory order) and how many of them count.
pub(super) fn write_words(
    out: &mut Vec<u8>,
    tokens: &[u32],
    word: impl Fn(u32) -> ([u8; WORD], usize),
) {
    // A word never advances by more than it writes, so this much space is always enough.
    let mut at = out.len();
    out.resize(at + tokens.len() * 5 + WORD, 0);
    for token in tokens {
        let (bytes, width) = word(*token);
        out[at..at + WORD].copy_from_slice(&bytes);
        at += width;
    }
    out.truncate(at);
}
