//! The body of a score answer, as the HTTP API gives it and as the binding hands rows over.

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
    /// The answer as the bytes of a JSON object.
    #[must_use]
    pub fn to_json(&self, model: &str, num_tokens: usize) -> Vec<u8> {
        let rows = self.roster.iter().zip(&self.rows);
        let rows = rows.map(|(member, row)| NamedRow {
            pod: &member.pod,
            dp_rank: member.dp_rank,
            row,
        });
        // Nothing in it can fail to serialise: texts, numbers and maps with text keys.
        serde_json::to_vec(&Body {
            model,
            num_tokens,
            pods: rows.collect(),
        })
        .unwrap_or_default()
    }
}
