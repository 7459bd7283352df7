//! A position in MessagePack bytes: heads, typed values, and skipping.
//!
//! Invariant: a length above fifteen is believed only if that many bytes are left, so no reader reserves
//! more than the input could fill. Skipping keeps a count instead of a stack: nesting costs nothing
//! and has no limit. Everything returns the reason of refusal. If the bytes end too early, a reader
//! may name another reason than `MalformedBatch`: the caller's skip of the whole value decides.

use rmp::Marker;

use crate::wire::RefusalReason;
use crate::wire::tokens::WideSink;

/// The value, or why it is refused.
pub(super) type Read<T> = Result<T, RefusalReason>;

const TRUNCATED: RefusalReason = RefusalReason::MalformedBatch;
const WRONG_TYPE: RefusalReason = RefusalReason::MalformedEvent;
const NIL: u8 = 0xc0;

/// Where the bits of a token lie in the eight bytes from its marker on.
#[derive(Debug, Clone, Copy)]
struct TokenWidth {
    skip: u8,
    shift: u8,
    is_usual: bool,
}

const UNUSUAL: TokenWidth = TokenWidth {
    skip: 0,
    shift: 0,
    is_usual: false,
};

/// The width of a token by its marker: fixint, u8, u16 and u32.
const TOKEN_WIDTHS: [TokenWidth; 256] = {
    let mut widths = [UNUSUAL; 256];
    let mut marker = 0;
    while marker < 0x80 {
        widths[marker] = TokenWidth {
            skip: 0,
            shift: 56,
            is_usual: true,
        };
        marker += 1;
    }
    widths[0xcc] = TokenWidth {
        skip: 8,
        shift: 56,
        is_usual: true,
    };
    widths[0xcd] = TokenWidth {
        skip: 8,
        shift: 48,
        is_usual: true,
    };
    widths[0xce] = TokenWidth {
        skip: 8,
        shift: 32,
        is_usual: true,
    };
    widths
};

/// The bytes that two usual tokens take at most, wherever the second begins.
const PAIR: usize = 17;

/// How many bytes a usual token takes, by its marker; up to 9 for any marker. It is computed, because
/// a table takes longer, and a token's start is known only after the tokens before it.
#[inline]
fn token_len(marker: u8) -> usize {
    1 + (usize::from(marker >> 7) << (marker & 3))
}

/// The token that begins these bytes, at least eight, if its marker is a usual one.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the shift leaves at most 32 bits"
)]
fn usual_token(bytes: &[u8]) -> Option<u32> {
    let eight = bytes.first_chunk::<8>()?;
    let width = TOKEN_WIDTHS[usize::from(eight[0])];
    let bits = u64::from_be_bytes(*eight) << (width.skip & 63) >> (width.shift & 63);
    width.is_usual.then_some(bits as u32)
}

/// What a value is; for texts, bytes and containers: how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Head {
    Nil,
    Bool,
    /// 64 bits, with or without sign.
    Int(i128),
    Float(f64),
    Str(usize),
    Bin(usize),
    Array(u32),
    Map(u32),
    /// The length includes the byte of the type.
    Ext(usize),
}

/// A position in bytes that lives as long as they do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The bytes from an earlier position to here.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    /// Steps over `expected` if it stands here and is not empty.
    #[inline]
    pub(super) fn take_same(&mut self, expected: &[u8]) -> bool {
        // Most bytes that differ do so in the first one.
        let is_same = self
            .peek()
            .is_some_and(|next| expected.first() == Some(&next))
            && self.bytes[self.at..].starts_with(expected);
        if is_same {
            self.at += expected.len();
        }
        is_same
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        let bytes = self.bytes[self.at..].first_chunk::<N>().ok_or(TRUNCATED)?;
        self.at += N;
        Ok(*bytes)
    }

    /// The next `len` bytes; a head has checked that they are there.
    fn body(&mut self, len: usize) -> &'a [u8] {
        let start = self.at;
        self.at += len;
        &self.bytes[start..self.at]
    }

    /// Reads the head of a value and stops before its body, which fits what is left.
    #[inline]
    pub(super) fn head(&mut self) -> Read<Head> {
        let head = self.promise()?;
        let at_least = match head {
            Head::Str(len) | Head::Bin(len) | Head::Ext(len) => len,
            Head::Array(len) => len as usize,
            Head::Map(len) => 2 * len as usize,
            Head::Nil | Head::Bool | Head::Int(_) | Head::Float(_) => 0,
        };
        if at_least > self.remaining() {
            Err(TRUNCATED)
        } else {
            Ok(head)
        }
    }

    /// Reads the head of a value and believes its length.
    fn promise(&mut self) -> Read<Head> {
        let [marker] = self.fixed()?;
        Ok(match Marker::from_u8(marker) {
            Marker::Null => Head::Nil,
            Marker::True | Marker::False => Head::Bool,
            Marker::Reserved => return Err(TRUNCATED),
            Marker::FixPos(value) => Head::Int(i128::from(value)),
            Marker::FixNeg(value) => Head::Int(i128::from(value)),
            Marker::U8 => Head::Int(i128::from(u8::from_be_bytes(self.fixed()?))),
            Marker::U16 => Head::Int(i128::from(u16::from_be_bytes(self.fixed()?))),
            Marker::U32 => Head::Int(i128::from(u32::from_be_bytes(self.fixed()?))),
            Marker::U64 => Head::Int(i128::from(u64::from_be_bytes(self.fixed()?))),
            Marker::I8 => Head::Int(i128::from(i8::from_be_bytes(self.fixed()?))),
            Marker::I16 => Head::Int(i128::from(i16::from_be_bytes(self.fixed()?))),
            Marker::I32 => Head::Int(i128::from(i32::from_be_bytes(self.fixed()?))),
            Marker::I64 => Head::Int(i128::from(i64::from_be_bytes(self.fixed()?))),
            Marker::F32 => Head::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            Marker::F64 => Head::Float(f64::from_be_bytes(self.fixed()?)),
            Marker::FixStr(len) => Head::Str(usize::from(len)),
            Marker::Str8 => Head::Str(self.len8()?),
            Marker::Str16 => Head::Str(self.len16()?),
            Marker::Str32 => Head::Str(self.len32()?),
            Marker::Bin8 => Head::Bin(self.len8()?),
            Marker::Bin16 => Head::Bin(self.len16()?),
            Marker::Bin32 => Head::Bin(self.len32()?),
            Marker::FixArray(len) => Head::Array(u32::from(len)),
            Marker::Array16 => Head::Array(u32::from(u16::from_be_bytes(self.fixed()?))),
            Marker::Array32 => Head::Array(u32::from_be_bytes(self.fixed()?)),
            Marker::FixMap(len) => Head::Map(u32::from(len)),
            Marker::Map16 => Head::Map(u32::from(u16::from_be_bytes(self.fixed()?))),
            Marker::Map32 => Head::Map(u32::from_be_bytes(self.fixed()?)),
            Marker::FixExt1 => Head::Ext(2),
            Marker::FixExt2 => Head::Ext(3),
            Marker::FixExt4 => Head::Ext(5),
            Marker::FixExt8 => Head::Ext(9),
            Marker::FixExt16 => Head::Ext(17),
            Marker::Ext8 => Head::Ext(self.len8()? + 1),
            Marker::Ext16 => Head::Ext(self.len16()? + 1),
            Marker::Ext32 => Head::Ext(self.len32()? + 1),
        })
    }

    fn len8(&mut self) -> Read<usize> {
        Ok(usize::from(u8::from_be_bytes(self.fixed()?)))
    }

    fn len16(&mut self) -> Read<usize> {
        Ok(usize::from(u16::from_be_bytes(self.fixed()?)))
    }

    fn len32(&mut self) -> Read<usize> {
        Ok(u32::from_be_bytes(self.fixed()?) as usize)
    }

    /// Steps over one value, however deeply nested.
    #[inline]
    pub(super) fn skip(&mut self) -> Read<()> {
        // Most values that are skipped are nulls, booleans and small integers.
        if let Some(0..=0x7f | 0xe0..=0xff | NIL | 0xc2 | 0xc3) = self.peek() {
            self.at += 1;
            return Ok(());
        }
        self.skip_tree()
    }

    fn skip_tree(&mut self) -> Read<()> {
        let mut values = 1_u64;
        while values > 0 {
            values -= 1;
            match self.head()? {
                Head::Str(len) | Head::Bin(len) | Head::Ext(len) => self.at += len,
                Head::Array(len) => values += u64::from(len),
                Head::Map(len) => values += 2 * u64::from(len),
                Head::Nil | Head::Bool | Head::Int(_) | Head::Float(_) => {}
            }
        }
        Ok(())
    }

    /// Steps over a null if one stands here.
    #[inline]
    pub(super) fn take_null(&mut self) -> bool {
        let is_null = self.peek() == Some(NIL);
        self.at += usize::from(is_null);
        is_null
    }

    /// Steps over `count` nulls if that is what stands here.
    pub(super) fn take_nulls(&mut self, count: usize) -> bool {
        let nulls = self.bytes.get(self.at..self.at + count);
        let are_nulls = nulls.is_some_and(|bytes| bytes.iter().all(|byte| *byte == NIL));
        if are_nulls {
            self.at += count;
        }
        are_nulls
    }

    /// Reads a value, or null as `None`.
    #[inline]
    pub(super) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<Option<T>> {
        if self.take_null() {
            Ok(None)
        } else {
            read(self).map(Some)
        }
    }

    /// The number of elements of the array that starts here.
    #[inline]
    pub(super) fn array(&mut self) -> Read<u32> {
        if let Some(marker @ 0x90..=0x9f) = self.peek() {
            let len = u32::from(marker & 0xf);
            if self.remaining() > len as usize {
                self.at += 1;
                return Ok(len);
            }
        }
        if let Head::Array(len) = self.head()? {
            Ok(len)
        } else {
            Err(WRONG_TYPE)
        }
    }

    /// As `array`, but the number is only a promise: read until it is kept or the bytes end.
    pub(super) fn promised_array(&mut self) -> Read<u32> {
        if let Head::Array(len) = self.promise()? {
            Ok(len)
        } else {
            Err(WRONG_TYPE)
        }
    }

    /// Any integer.
    pub(super) fn int(&mut self) -> Read<i128> {
        if let Head::Int(value) = self.head()? {
            Ok(value)
        } else {
            Err(WRONG_TYPE)
        }
    }

    /// An integer of 0..=4294967295.
    #[inline]
    pub(super) fn u32(&mut self) -> Read<u32> {
        if let Some(value @ 0..=0x7f) = self.peek() {
            self.at += 1;
            return Ok(u32::from(value));
        }
        u32::try_from(self.int()?).map_err(|_| WRONG_TYPE)
    }

    /// An integer of 64 bits with a sign.
    pub(super) fn i64(&mut self) -> Read<i64> {
        i64::try_from(self.int()?).map_err(|_| WRONG_TYPE)
    }

    /// A floating-point number, or an integer as the nearest one.
    #[expect(clippy::cast_precision_loss, reason = "a time in seconds")]
    pub(super) fn number(&mut self) -> Read<f64> {
        let mut ahead = *self;
        if let Head::Float(value) = ahead.head()? {
            *self = ahead;
            return Ok(value);
        }
        self.int().map(|value| value as f64)
    }

    /// The bytes of a text; UTF-8 is not checked.
    #[inline]
    pub(super) fn str_bytes(&mut self) -> Read<&'a [u8]> {
        // Names of fields and events are short: the head of most is one byte.
        if let Some(marker @ 0xa0..=0xbf) = self.peek() {
            let len = usize::from(marker & 0x1f);
            let text = self.bytes[self.at + 1..].get(..len).ok_or(TRUNCATED)?;
            self.at += 1 + len;
            return Ok(text);
        }
        let Head::Str(len) = self.head()? else {
            return Err(WRONG_TYPE);
        };
        Ok(self.body(len))
    }

    /// A text of at most `limit` bytes.
    pub(super) fn text(&mut self, limit: usize) -> Read<&'a str> {
        let bytes = self.str_bytes()?;
        if bytes.len() > limit {
            return Err(RefusalReason::TooLarge);
        }
        std::str::from_utf8(bytes).map_err(|_| RefusalReason::BadText)
    }

    /// The bytes of a byte string of at most `limit` bytes.
    pub(super) fn bin(&mut self, limit: usize) -> Read<&'a [u8]> {
        let Head::Bin(len) = self.head()? else {
            return Err(WRONG_TYPE);
        };
        if len > limit {
            Err(RefusalReason::TooLarge)
        } else {
            Ok(self.body(len))
        }
    }

    /// A block hash: an integer as its 64 bits, or the last 8 bytes of a byte string, big-endian.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "64 bits, kept"
    )]
    #[inline]
    pub(super) fn hash(&mut self) -> Read<u64> {
        if let Some(&[0xcf, bits @ ..]) = self.bytes[self.at..].first_chunk::<9>() {
            self.at += 9;
            return Ok(u64::from_be_bytes(bits));
        }
        let mut ahead = *self;
        if let Head::Bin(len @ 1..) = ahead.head()? {
            let last = &ahead.body(len)[len.saturating_sub(8)..];
            *self = ahead;
            return Ok(last
                .iter()
                .fold(0, |bits, byte| bits << 8 | u64::from(*byte)));
        }
        self.int()
            .map(|value| value as u64)
            .map_err(|_| RefusalReason::BadHash)
    }

    /// Reads `count` token ids. The index of the next one in the arena is only computed for unusual ones.
    pub(super) fn tokens(
        &mut self,
        count: u32,
        ids: &mut Vec<u32>,
        rest: &mut WideSink<'_>,
    ) -> Read<()> {
        let start = ids.len();
        let end = start + count as usize;
        ids.resize(end, 0);
        let mut here = *self; // A copy stays in registers.
        let mut pairs = ids[start..].chunks_exact_mut(2);
        while let Some(pair) = pairs.next() {
            if let Some((values, len)) = here.two_usual_tokens() {
                pair.copy_from_slice(&values);
                here.at += len;
            } else {
                *self = here;
                let at = (end - (end - start) % 2) - 2 * (pairs.len() + 1);
                self.unusual_tokens(pair, rest, at)?;
                here = *self;
            }
        }
        *self = here;
        let last = pairs.into_remainder();
        if last.is_empty() {
            return Ok(());
        }
        self.unusual_tokens(last, rest, end - 1)
    }

    /// Apart from the loop over usual tokens, which is faster without it.
    #[cold]
    #[inline(never)]
    fn unusual_tokens(
        &mut self,
        tokens: &mut [u32],
        rest: &mut WideSink<'_>,
        start: usize,
    ) -> Read<()> {
        for (at, token) in (start..).zip(tokens) {
            *token = self.token(rest, at)?;
        }
        Ok(())
    }

    /// Reads one token id of any kind, for the place `at`; what 32 bits of the place hold.
    pub(super) fn token(&mut self, rest: &mut WideSink<'_>, at: usize) -> Read<u32> {
        const BAD: RefusalReason = RefusalReason::BadTokens;
        let mut ahead = *self;
        match ahead.head().map_err(|_| BAD)? {
            Head::Int(number) => {
                *self = ahead;
                u64::try_from(number)
                    .map(|number| rest.number(at, number))
                    .map_err(|_| BAD)
            }
            Head::Str(1..) => self
                .text(rest.max_text_bytes)
                .map(|text| rest.text(at, text)),
            Head::Str(0)
            | Head::Nil
            | Head::Bool
            | Head::Float(_)
            | Head::Bin(_)
            | Head::Array(_)
            | Head::Map(_)
            | Head::Ext(_) => Err(BAD),
        }
    }

    /// The next two tokens, and their bytes, if both have usual markers. No branch depends on which.
    #[inline]
    fn two_usual_tokens(self) -> Option<([u32; 2], usize)> {
        let bytes = self.bytes.get(self.at..self.at + PAIR)?;
        let (_, second) = bytes.split_at(token_len(bytes[0]));
        let len = bytes.len() - second.len() + token_len(second[0]);
        match (usual_token(bytes), usual_token(second)) {
            (Some(first), Some(second)) => Some(([first, second], len)),
            (None, _) | (_, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tokens::TokenArena;

    #[test]
    fn every_marker_is_read_or_refused() {
        for marker in 0..=u8::MAX {
            let mut bytes = vec![0_u8; 64];
            bytes[0] = marker;
            let skipped = Cursor::new(&bytes).skip();
            assert_eq!(skipped.is_err(), marker == 0xc1, "marker {marker:#x}");
        }
    }

    #[test]
    fn a_length_beyond_the_input_is_refused_before_anything_is_read() {
        for head in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0x7f, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xc6, 0, 0, 0, 1],
            &[0xc9, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(Cursor::new(head).head(), Err(RefusalReason::MalformedBatch));
        }
    }

    #[test]
    fn skipping_ten_million_nested_arrays_needs_no_stack() {
        let mut bytes = vec![0x91_u8; 10_000_000];
        bytes.push(0x90);
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(cursor.skip(), Ok(()));
        assert!(cursor.is_at_end());
    }

    #[test]
    fn tokens_are_read_alike_in_pairs_and_one_by_one() {
        let spellings: [&[u8]; 11] = [
            &[0x7f],
            &[0xcc, 0x80],
            &[0xcd, 0xcd, 0xce],
            &[0xce, 0xff, 0, 0xcc, 1],
            &[0xcf, 0, 0, 0, 0, 0xff, 0, 0xcc, 1],
            &[0xd0, 0x11],
            &[0xd1, 0x11, 0x22],
            &[0xd2, 0x11, 0x22, 0x33, 0x44],
            &[0xcf, 1, 0, 0, 0, 0, 0xcc, 0, 1],
            &[0xa2, 0x66, 0x66],
            &[0xff], // Below 0, so that it is refused.
        ];
        for choice in 0..11_usize.pow(4) {
            let chosen = (0..4).map(|at| spellings[choice / 11_usize.pow(at) % 11]);
            let bytes = chosen.collect::<Vec<_>>().concat();
            // Once with further bytes after the tokens, and once at the end of the input.
            for bytes in [[&bytes[..], &[0; 32]].concat(), bytes] {
                let (mut pairs, mut single) = (Cursor::new(&bytes), Cursor::new(&bytes));
                let [mut many, mut one] = [TokenArena::default(), TokenArena::default()];
                let [mut texts, mut text] = [String::new(), String::new()];
                let mut rest = WideSink {
                    wide: &mut many.wide,
                    texts: &mut texts,
                    max_text_bytes: 9,
                };
                let result = pairs.tokens(4, &mut many.ids, &mut rest);
                let mut rest = WideSink {
                    wide: &mut one.wide,
                    texts: &mut text,
                    max_text_bytes: 9,
                };
                let expected: Read<()> = (0..4).try_for_each(|at| {
                    one.ids.push(single.token(&mut rest, at)?);
                    Ok(())
                });
                assert_eq!(result, expected);
                if result.is_ok() {
                    assert_eq!((&many, pairs.at()), (&one, single.at()));
                    assert_eq!(texts, text);
                }
            }
        }
    }

    #[test]
    fn hashes_of_all_spellings_agree() {
        let spellings: [&[u8]; 5] = [
            &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe],
            &[0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe],
            &[0xfe],
            &[0xd0, 0xfe],
            &[0xc4, 9, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe],
        ];
        for bytes in spellings {
            assert_eq!(Cursor::new(bytes).hash(), Ok(u64::MAX - 1));
        }
        assert_eq!(Cursor::new(&[0xc4, 2, 1, 2]).hash(), Ok(0x0102));
        assert_eq!(Cursor::new(&[0xc4, 0]).hash(), Err(RefusalReason::BadHash));
    }
}
