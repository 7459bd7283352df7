//! Finds the token ids of a JSON request without building an object per token.
//!
//! This is a shortcut, not a JSON parser: it reads one array of integers and skips everything else.
//! If anything is unusual it finds nothing, and the caller parses the whole text instead, which also
//! shows what is wrong with it. A value that it finds is valid JSON by itself, so a text with this
//! value replaced is valid exactly if the original text was.

use std::ops::Range;

/// The one `token_ids` array at the top level of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpan {
    /// The ids as little-endian `u32`, four bytes each.
    pub tokens: Vec<u8>,
    /// Where the array stands in the text, brackets included.
    pub span: Range<usize>,
}

/// Finds the array; `None` if the text is not an object with exactly one `token_ids`, if that is not
/// an array of integers that fit `u32`, or if a key is written with escapes.
#[must_use]
pub fn find_token_ids(text: &[u8]) -> Option<TokenSpan> {
    let mut scan = Scan { text, at: 0 };
    let mut found = None;
    scan.expect(b'{')?;
    loop {
        let is_tokens = scan.key()? == b"token_ids";
        scan.expect(b':')?;
        if is_tokens {
            if found.is_some() {
                return None;
            }
            found = Some(scan.tokens()?);
        } else {
            scan.step_over_value()?;
        }
        match scan.next_mark()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    scan.space();
    if scan.at == text.len() { found } else { None }
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// The next byte that is not space.
    fn next_mark(&mut self) -> Option<u8> {
        self.space();
        let mark = self.peek()?;
        self.at += 1;
        Some(mark)
    }

    fn expect(&mut self, mark: u8) -> Option<()> {
        (self.next_mark()? == mark).then_some(())
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|&byte| matches!(byte, b'"' | b'\\'))?;
        self.at += length + 1;
        (rest[length] == b'"').then_some(&rest[..length])
    }

    fn tokens(&mut self) -> Option<TokenSpan> {
        self.expect(b'[')?;
        let start = self.at - 1;
        // Ids of up to five digits and a separator: most texts never grow this.
        let mut tokens = Vec::with_capacity((self.text.len() - start) / 6 * 4);
        self.space();
        if self.peek()? == b']' {
            self.at += 1;
            return Some(TokenSpan {
                tokens,
                span: start..self.at,
            });
        }
        let mut rest = &self.text[self.at..];
        loop {
            let (token, after) = integer(skip_space(rest))?;
            tokens.extend_from_slice(&token.to_le_bytes());
            match skip_space(after) {
                [b',', next @ ..] => rest = next,
                [b']', next @ ..] => {
                    self.at = self.text.len() - next.len();
                    return Some(TokenSpan {
                        tokens,
                        span: start..self.at,
                    });
                }
                _ => return None,
            }
        }
    }

    /// Stops at the comma or brace that ends a member, outside of strings and nesting.
    fn step_over_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.step_over_string()?,
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b',' | b'}' if depth == 0 => return Some(()),
                b']' | b'}' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
    }

    fn step_over_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }
}

#[inline]
fn skip_space(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Digits without a leading zero, and the text after them, which the caller judges.
#[inline]
fn integer(text: &[u8]) -> Option<(u32, &[u8])> {
    let (value, length) = short_digits(text).or_else(|| any_digits(text))?;
    let leading_zero = length > 1 && text[0] == b'0';
    if leading_zero {
        None
    } else {
        Some((value, &text[length..]))
    }
}

const EACH: u64 = 0x0101_0101_0101_0101;

/// One to seven digits, eight bytes at a time: (value, length).
///
/// Xor turns digits into their values; the first byte above 9 after that ends the number. The digits
/// are then shifted to the top, which gives them leading zeros, and added by twos, fours and eights.
#[inline]
fn short_digits(text: &[u8]) -> Option<(u32, usize)> {
    let digits = u64::from_le_bytes(*text.first_chunk()?) ^ (EACH * 0x30);
    let above_nine = (digits | digits.wrapping_add(EACH * 0x76)) & (EACH * 0x80);
    let bits = above_nine.trailing_zeros() & !7;
    if bits == 0 || bits == 64 {
        return None;
    }
    let ones = digits << (64 - bits);
    let twos = ones.wrapping_mul(10).wrapping_add(ones >> 8);
    let mask = 0x0000_00FF_0000_00FF;
    let low = (twos & mask).wrapping_mul(100 + (1_000_000 << 32));
    let high = ((twos >> 16) & mask).wrapping_mul(1 + (10_000 << 32));
    let value = u32::try_from(low.wrapping_add(high) >> 32).ok()?;
    Some((value, bits as usize / 8))
}

/// Digits one by one, for numbers that are longer, or at the end of the text.
fn any_digits(text: &[u8]) -> Option<(u32, usize)> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=10).contains(&length) {
        return None; // Ten digits hold every `u32`.
    }
    let add = |value: u64, digit: &u8| value * 10 + u64::from(digit - b'0');
    let value = text[..length].iter().fold(0, add);
    Some((u32::try_from(value).ok()?, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<(Vec<u32>, &str)> {
        find_token_ids(text.as_bytes()).map(|hit| {
            let words = hit.tokens.as_chunks::<4>().0.iter();
            (
                words.map(|word| u32::from_le_bytes(*word)).collect(),
                &text[hit.span],
            )
        })
    }

    #[test]
    fn finds_the_array_wherever_it_stands() {
        for (text, tokens, span) in [
            (r#"{"token_ids":[]}"#, vec![], "[]"),
            (
                r#" { "token_ids" : [ 0 , 4294967295 ] } "#,
                vec![0, u32::MAX],
                "[ 0 , 4294967295 ]",
            ),
            (
                r#"{"a":"]},\"","b":{"token_ids":[9]},"token_ids":[7]}"#,
                vec![7],
                "[7]",
            ),
            (
                r#"{"token_ids":[1],"pods":["a","b"],"lora":null}"#,
                vec![1],
                "[1]",
            ),
        ] {
            assert_eq!(found(text), Some((tokens, span)), "{text}");
        }
    }

    #[test]
    fn finds_nothing_where_anything_is_unusual() {
        for text in [
            "",
            "{",
            "{}",
            "[]",
            "null",
            r#"{"token_ids""#,
            r#"{"token_ids":"#,
            r#"{"token_ids":[1]"#,
            r#"{"token_ids":[1]}x"#,
            r#"{"token_ids":[1],}"#,
            r#"{"token_ids":[1,]}"#,
            r#"{"token_ids":[,1]}"#,
            r#"{"token_ids":[01]}"#,
            r#"{"token_ids":[-1]}"#,
            r#"{"token_ids":[1.0]}"#,
            r#"{"token_ids":[1e2]}"#,
            r#"{"token_ids":[4294967296]}"#,
            r#"{"token_ids":[99999999999]}"#,
            r#"{"token_ids":[[1]]}"#,
            r#"{"token_ids":[1 2]}"#,
            r#"{"token_ids":null}"#,
            r#"{"token_ids":[1],"token_ids":[1]}"#,
            r#"{"token\u005fids":[1]}"#,
            r#"{"token_ids":[1],"a":]}"#,
            r#"{"a":"\"#,
            r#"{"a":"b"#,
            r#"{"a":[1}"#,
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
