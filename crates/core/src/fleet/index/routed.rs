//! What a gateway says: what it is sending to a pod, before any event can tell; what it has sent, and
//! what came back.

use super::Index;
use crate::error::Result;
use crate::fleet::effort::Effort;
use crate::fleet::ingest::namespace;
use crate::fleet::keys::prompt::{MediaMark, Prompt};
use crate::fleet::keys::step::KeyStep;
use crate::fleet::pod::Member;
use crate::fleet::pod::publisher::Publisher;
use crate::fleet::presence::SharedPresence;
use crate::fleet::query::prompt_keys::{PromptKeys, RequestKeys};
use crate::fleet::query::request::ScoreRequest;
use crate::fleet::query::search::RequestSearch;
use crate::fleet::query::soon;
use crate::fleet::rank::Rank;
use crate::fleet::silent::MOST_PAGES;

impl Index {
    /// Notes that a rank was sent a request, and produced these tokens. Only pods with groups that no
    /// event tells of use it, for the expected value: what their engine keeps follows from what it
    /// was asked. Their stores then leave no marks, so a pod needs either all of its requests or none.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered, and for a pod of another model.
    pub fn routed(
        &mut self,
        name: &str,
        dp_rank: u32,
        request: &ScoreRequest<'_>,
        produced: &[u32],
    ) -> Result<()> {
        while !self.begin_routed(name, dp_rank, request.model, usize::MAX)? {}
        self.note_routed(name, dp_rank, request, produced)?;
        while !self.end_routed(name, dp_rank, usize::MAX)? {}
        Ok(())
    }

    /// Prepares `note_routed`: does at most so much of what is to be done before, in pages. Returns
    /// whether all is done. Until a request is noted and `end_routed` returns true, only questions may
    /// be asked.
    ///
    /// # Errors
    /// The same as for `routed`.
    pub fn begin_routed(
        &mut self,
        name: &str,
        dp_rank: u32,
        model: &str,
        most: usize,
    ) -> Result<bool> {
        self.check_serves(name, model)?;
        let (model, column) = self.locate(name, dp_rank)?;
        let begin =
            |rank: &mut Rank, shared: &mut SharedPresence<'_>| rank.begin_route(most, shared);
        Ok(model.with_rank(column, begin).unwrap_or(true))
    }

    /// Completes `note_routed`: shows what has changed of at most so many pages. Returns whether
    /// all is shown.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn end_routed(&mut self, name: &str, dp_rank: u32, most: usize) -> Result<bool> {
        let (model, column) = self.locate(name, dp_rank)?;
        let show =
            |rank: &mut Rank, shared: &mut SharedPresence<'_>| rank.show_some(most, shared) < most;
        Ok(model.with_rank(column, show).unwrap_or(true))
    }

    /// The part of `routed` that is done at once, for a request of the pod's model.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn note_routed(
        &mut self,
        name: &str,
        dp_rank: u32,
        request: &ScoreRequest<'_>,
        produced: &[u32],
    ) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        let rank = model.ranks[column].as_ref();
        let Some((silent, rank)) = rank.and_then(|rank| Some((rank.silent.as_ref()?, rank))) else {
            return Ok(());
        };
        let step = KeyStep {
            unit: silent.page_size(),
            lookahead: rank.catalog.lookahead(),
            page: 0,
        };
        let has_lora = request.prompt.lora().is_some();
        let view = rank.view().filter(|_| !has_lora);
        let space_page = view.map_or(0, |view| view.space_page);
        let mut tokens = [request.prompt.tokens, produced].concat();
        if request.prompt.media.is_empty() {
            // One page more than is followed shows that there are more.
            tokens.truncate((MOST_PAGES + 1) * step.unit as usize + step.lookahead as usize);
        }
        let prompt = Prompt {
            tokens: &tokens,
            ..request.prompt
        };
        let media = MediaMark::of(&model.marks, &prompt);
        let keys = PromptKeys::new(&model.marks, &prompt, &media, step, &Effort::default());
        let salt = match space_page {
            0 => Some(model.marks.salt(prompt.salt)),
            _ if step.lookahead > 0 => None,
            page => namespace::of_request(&model.marks, &request.prompt, page as usize),
        };
        let Some(salt) = salt.map(|salt| model.nodes.term(salt)) else {
            return Ok(());
        };
        let keys = keys.node_keys(salt).collect();
        let length = |tokens: &[u32]| u32::try_from(tokens.len()).unwrap_or(u32::MAX / 4);
        let lengths = (length(request.prompt.tokens), length(produced));
        model.with_rank(column, |rank, _| rank.route(keys, lengths));
        Ok(())
    }

    /// Notes that a rank will soon hold a prompt, and returns the number of this promise. `junction`
    /// is how many tokens of it are present there now: an engine with states keeps one there, and one
    /// at the end. `sparse_windows` says whether it keeps windows nowhere else either; `None`: as such
    /// engines do. `known` are keys that `ask` has made for this request.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered, and for a pod of another model.
    pub fn promise(
        &mut self,
        (name, dp_rank): (&str, u32),
        (request, known): (&ScoreRequest<'_>, &RequestKeys),
        junction: u32,
        sparse_windows: Option<bool>,
    ) -> Result<u64> {
        self.check_serves(name, request.model)?;
        let (_, column) = self.locate(name, dp_rank)?;
        let member = Member {
            pod: name.into(),
            dp_rank,
            column: Some(column),
        };
        let resolved = self.resolve(request, &[member]);
        self.num_promises += 1;
        let (id, limit) = (self.num_promises, self.options.promise_limit_bytes);
        let (model, _) = self.locate(name, dp_rank)?;
        let publisher = model.ranks[column]
            .as_ref()
            .map(|rank| rank.catalog.config.publisher);
        let is_sparse =
            sparse_windows.unwrap_or_else(|| publisher.is_some_and(Publisher::keeps_sparsely));
        let mut search = RequestSearch::new(model, &resolved);
        let promise = soon::promise(&mut search, known, column, junction, is_sparse);
        model.promises.set_sparse(column, is_sparse);
        if let Some(promise) = promise {
            model.nodes.note_shown(&promise.keys);
            model.promises.add(id, promise);
        }
        self.note_gone();
        while self.promised_bytes() > limit && self.withdraw_oldest() {}
        Ok(id)
    }

    /// Withdraws a promise. Returns whether it still counted.
    pub fn withdraw(&mut self, promise: u64) -> bool {
        let mut models = self.models.values_mut();
        models.any(|model| model.promises.withdraw(promise))
    }

    /// The number of promises that count.
    #[must_use]
    pub fn num_promised(&self) -> usize {
        self.models.values().map(|model| model.promises.len()).sum()
    }

    fn promised_bytes(&self) -> usize {
        let models = self.models.values();
        models.map(|model| model.promises.bytes()).sum()
    }

    /// Withdraws the oldest promise of the model with the most bytes. Returns false if there is none.
    fn withdraw_oldest(&mut self) -> bool {
        let models = self.models.values_mut();
        let Some(model) = models.max_by_key(|model| model.promises.bytes()) else {
            return false;
        };
        let Some(column) = model.promises.withdraw_oldest() else {
            return false;
        };
        if let Some(rank) = &mut model.ranks[column] {
            rank.counts.refuse("promises_over_limit", 1);
        }
        true
    }
}
