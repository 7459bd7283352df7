//! The body of a score answer, as the HTTP API sends it and as the binding passes rows on.

use super::answer::{Answer, Row};

#[derive(serde::Serialize)]
struct Body<'a> {
    model: &'a str,
    num_tokens: usize,
    pods: Vec<NamedRow<'a>>,
}

/// A row with the name of its rank.
#[derive(serde::Serialize)]
struct NamedRow<'a> {
    pod: &'a str,
    dp_rank: u32,
    #[serde(flatten)]
    row: &'a Row,
}

impl Answer {
    /// The answer as a JSON object, in bytes.
    #[must_use]
    pub fn to_json(&self, model: &str, num_tokens: usize) -> Vec<u8> {
        let rows = self.roster.iter().zip(&self.rows);
        let rows = rows.map(|(member, row)| NamedRow {
            pod: &member.pod,
            dp_rank: member.dp_rank,
            row,
        });
        // Serialising cannot fail: there are only texts, numbers and maps with text keys.
        serde_json::to_vec(&Body {
            model,
            num_tokens,
            pods: rows.collect(),
        })
        .unwrap_or_default()
    }
}
