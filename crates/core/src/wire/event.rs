//! One event: either spelling into a draft, the draft into an event of the batch.
//!
//! A refused event leaves nothing in the arenas. Lists whose bytes equal those of the previous store
//! are not decoded again, because groups of one model often repeat the same span. The same applies to
//! the fields after an event's own (`trailing_fields`).

use crate::names::named;
use crate::spec::SpecKind;
use crate::wire::cursor::{Cursor, Head, Read};
use crate::wire::draft::Draft;
use crate::wire::fields::{EventTag, Field};
use crate::wire::tokens::TokenArena;
use crate::wire::trailing_fields::{FieldCursor, TrailingFields};
use crate::wire::{
    Batch, Component, Event, Limits, Medium, RefusalReason, Span, Stored, Untold, keys, values,
};

/// Reads the events of one batch from `cursor` into the arenas of the batch.
pub(super) struct EventReader<'a, 'p> {
    pub(super) cursor: Cursor<'p>,
    limits: &'a Limits,
    batch: &'a mut Batch,
    /// Second tokens of the pairs of the event at hand; memory only.
    seconds: &'a mut TokenArena,
    draft: Draft<'p>,
    /// What the event at hand is, once that was read.
    tag: Option<EventTag>,
    previous: Option<Draft<'p>>,
    /// Which fields of its own the event at hand has had, and where the cursor was after them.
    own_end: Option<(FieldCursor, usize)>,
    /// The trailing fields of the last store and of the last remove.
    trailing: [Option<TrailingFields<'p>>; 2],
}

impl<'a, 'p> EventReader<'a, 'p> {
    pub(super) fn new(
        cursor: Cursor<'p>,
        limits: &'a Limits,
        batch: &'a mut Batch,
        seconds: &'a mut TokenArena,
    ) -> Self {
        Self {
            cursor,
            limits,
            batch,
            seconds,
            draft: Draft::default(),
            tag: None,
            previous: None,
            own_end: None,
            trailing: [None; 2],
        }
    }

    /// Reads event number `index` into the batch, or refuses it there.
    ///
    /// # Errors
    /// There is no whole value here, so nothing after it can be read either.
    pub(super) fn read(&mut self, index: u32) -> Read<()> {
        let (start, marks) = (self.cursor, self.batch.marks());
        match self.event() {
            Ok(event) => {
                self.batch.events.push(event);
                self.keep_trailing_fields();
            }
            Err(reason) => {
                self.cursor = start;
                self.batch.truncate(marks);
                self.cursor.skip()?;
                self.batch.refuse(reason, Some(index), self.untold());
                return Ok(());
            }
        }
        if self.draft.has_unknown_kind {
            self.batch
                .refuse(RefusalReason::UnknownKind, Some(index), self.untold());
        }
        Ok(())
    }

    /// What the event at hand tells, as far as its tag was read.
    fn untold(&self) -> Untold {
        match self.tag {
            Some(EventTag::Stored) => Untold::Stored,
            Some(EventTag::Removed | EventTag::Cleared) => Untold::Removed,
            None => Untold::Anything,
        }
    }

    fn event(&mut self) -> Read<Event> {
        self.draft = Draft::default();
        self.tag = None;
        self.own_end = None;
        let tag = match self.cursor.head()? {
            Head::Array(len) => self.positional_fields(len)?,
            Head::Map(len) => self.tag_and_named_fields(len)?,
            Head::Nil
            | Head::Bool
            | Head::Int(_)
            | Head::Float(_)
            | Head::Str(_)
            | Head::Bin(_)
            | Head::Ext(_) => return Err(RefusalReason::MalformedEvent),
        };
        if !self.draft.seen.has_all(tag.required()) {
            return Err(RefusalReason::MalformedEvent);
        }
        match tag {
            EventTag::Stored => self.finish().map(Event::Stored),
            EventTag::Removed => Ok(Event::Removed(self.draft.removed())),
            EventTag::Cleared => Ok(Event::Cleared),
        }
    }

    /// Reads an array of `len` elements: the tag, then fields by position.
    fn positional_fields(&mut self, len: u32) -> Read<EventTag> {
        if len == 0 {
            return Err(RefusalReason::MalformedEvent);
        }
        let tag = EventTag::named(self.cursor.str_bytes()?).ok_or(RefusalReason::UnknownEvent)?;
        self.tag = Some(tag);
        let mut positions = tag.positions();
        for left in (0..len - 1).rev() {
            match positions {
                [Field::Medium, ..] if self.is_component() => self.field(tag, Field::Component)?,
                [field, later @ ..] => {
                    self.field(tag, *field)?;
                    positions = later;
                }
                [] => self.cursor.skip()?,
            }
            if self.take_trailing_fields(tag, left) {
                break;
            }
        }
        Ok(tag)
    }

    fn tag_and_named_fields(&mut self, len: u32) -> Read<EventTag> {
        if len > 0
            && let Some(tag) = EventTag::take_first(&mut self.cursor)
        {
            self.tag = Some(tag);
            self.draft.seen.insert(Field::Type);
            self.named_fields(tag, len - 1)?;
            return Ok(tag);
        }
        let tag = EventTag::find(self.cursor, len)?;
        self.tag = Some(tag);
        self.named_fields(tag, len)?;
        Ok(tag)
    }

    /// Reads a map of `len` entries: fields by name, in any order.
    fn named_fields(&mut self, tag: EventTag, len: u32) -> Read<()> {
        let mut next = 0;
        for left in (0..len).rev() {
            match tag.take_key(&mut self.cursor, &mut next)? {
                Some(field) => self.field(tag, field)?,
                None => self.cursor.skip()?,
            }
            if self.take_trailing_fields(tag, left) {
                break;
            }
        }
        Ok(())
    }

    /// Called right after the event's own fields: steps over its trailing fields if these equal the
    /// last ones. Otherwise those of this event are kept later.
    fn take_trailing_fields(&mut self, tag: EventTag, left: u32) -> bool {
        if self.own_end.is_some() || !self.draft.seen.has(tag.own().1) {
            return false;
        }
        let at = FieldCursor {
            tag,
            seen: self.draft.seen,
            left,
        };
        if let Some(last) = &self.trailing[usize::from(tag == EventTag::Removed)]
            && let Some(bytes) = last.expected(at)
            && self.cursor.take_same(bytes)
        {
            self.draft = last.complete(&self.draft);
            return true;
        }
        self.own_end = Some((at, self.cursor.at()));
        false
    }

    fn keep_trailing_fields(&mut self) {
        if let Some((at, start)) = self.own_end {
            let fields = TrailingFields::of(at, self.cursor.since(start), self.draft);
            self.trailing[usize::from(at.tag == EventTag::Removed)] = fields;
        }
    }

    /// Reads the value of one field into the draft.
    fn field(&mut self, tag: EventTag, field: Field) -> Read<()> {
        if !self.draft.seen.insert(field) {
            return Err(RefusalReason::MalformedEvent);
        }
        let stored = &mut self.draft.stored;
        let cursor = &mut self.cursor;
        match field {
            Field::Type => cursor.skip()?,
            Field::BlockHashes => self.hashes()?,
            Field::Parent => stored.parent = cursor.optional(Cursor::hash)?,
            Field::Tokens => self.tokens()?,
            Field::BlockSize => stored.block_size = cursor.u32()?,
            Field::LoraId => stored.lora_id = cursor.optional(Cursor::i64)?,
            Field::Medium => self.draft.stored.medium = self.medium()?,
            Field::LoraName => self.draft.stored.lora_name = self.text()?,
            Field::LoraNameOrMetadata => self.lora_name_or_metadata(tag)?,
            Field::ExtraKeys => self.draft.extra_keys = self.raw_list()?,
            Field::Group => stored.group = cursor.optional(values::group)?,
            Field::Kind => self.draft.stored.kind = self.kind()?,
            Field::Window => stored.window = cursor.optional(Cursor::u32)?,
            Field::Locality => stored.remote = cursor.optional(values::is_remote)?.unwrap_or(false),
            Field::Ownership => self.draft.stored.owner = self.text()?,
            Field::Lookahead => self.draft.lookahead = self.raw_list()?,
            Field::MmKeys => self.draft.mm_keys = self.raw_list()?,
            Field::CacheSalt => self.draft.stored.salt = self.text()?,
            Field::Component => stored.component = cursor.optional(values::component)?,
            Field::Components => stored.components = cursor.optional(values::components)?,
        }
        Ok(())
    }

    fn hashes(&mut self) -> Read<()> {
        if let Some(previous) = &self.previous
            && self.cursor.take_same(previous.hashes)
        {
            self.draft.hashes = previous.hashes;
            self.draft.stored.hashes = previous.stored.hashes;
            return Ok(());
        }
        let start = self.cursor.at();
        self.draft.stored.hashes = keys::hashes(&mut self.cursor, self.batch, self.limits)?;
        self.draft.hashes = self.cursor.since(start);
        Ok(())
    }

    fn tokens(&mut self) -> Read<()> {
        self.seconds.clear();
        if let Some(previous) = &self.previous
            && self.cursor.take_same(previous.tokens)
        {
            self.draft.tokens = previous.tokens;
            self.draft.stored.tokens = previous.stored.tokens;
            return Ok(());
        }
        let start = self.cursor.at();
        self.draft.stored.tokens =
            keys::tokens(&mut self.cursor, self.batch, self.limits, self.seconds)?;
        if self.seconds.ids.is_empty() {
            self.draft.tokens = self.cursor.since(start);
        }
        Ok(())
    }

    /// Steps over a list that is read when the event is complete. Empty when null.
    fn raw_list(&mut self) -> Read<&'p [u8]> {
        if self.cursor.take_null() {
            return Ok(&[]);
        }
        let start = self.cursor;
        let is_list_of_nulls = self
            .cursor
            .array()
            .is_ok_and(|len| self.cursor.take_nulls(len as usize));
        if !is_list_of_nulls {
            self.cursor = start;
            self.cursor.skip()?;
        }
        Ok(self.cursor.since(start.at()))
    }

    /// A text, `None` when null or empty.
    fn text(&mut self) -> Read<Option<Span>> {
        if self.cursor.take_null() {
            return Ok(None);
        }
        let text = keys::text(&mut self.cursor, self.batch, self.limits)?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    fn medium(&mut self) -> Read<Medium> {
        let mut ahead = self.cursor;
        if let Some(known) = Medium::from_bytes(ahead.str_bytes().unwrap_or_default()) {
            self.cursor = ahead;
            return Ok(known);
        }
        let Some(text) = self.text()? else {
            return Ok(Medium::default());
        };
        self.batch.texts[text.range()].make_ascii_lowercase();
        Ok(Medium::Other(text))
    }

    /// Whether the name of a component stands here. No medium is called like one.
    fn is_component(&self) -> bool {
        let name = |mut cursor: Cursor<'p>| cursor.str_bytes().ok();
        !self.draft.seen.has(Field::Component)
            && name(self.cursor).is_some_and(|name| named(&Component::NAMES, name).is_some())
    }

    fn lora_name_or_metadata(&mut self, tag: EventTag) -> Read<()> {
        let mut ahead = self.cursor;
        if let Head::Map(len) = ahead.head()? {
            self.cursor = ahead;
            self.named_fields(tag, len)
        } else {
            self.draft.stored.lora_name = self.text()?;
            Ok(())
        }
    }

    fn kind(&mut self) -> Read<Option<SpecKind>> {
        if self.cursor.take_null() {
            return Ok(None);
        }
        let mut ahead = self.cursor;
        let name = ahead.str_bytes().unwrap_or_default();
        if let Some(kind) = named(&SpecKind::NAMES, name) {
            self.cursor = ahead;
            return Ok(Some(kind));
        }
        self.cursor.text(self.limits.max_text_bytes)?;
        self.draft.has_unknown_kind = true;
        Ok(Some(SpecKind::Unknown))
    }

    /// Reads what depends on other fields, and compares with the previous store.
    fn finish(&mut self) -> Read<Stored> {
        let same = self.previous.filter(|previous| self.repeats(previous));
        if let Some(previous) = same {
            self.draft.stored.extra_keys = previous.stored.extra_keys;
            self.draft.stored.has_mm_keys = previous.stored.has_mm_keys;
            self.draft.stored.lookahead = previous.stored.lookahead;
        } else {
            self.draft.stored.extra_keys = self.extra_keys()?;
            self.draft.stored.lookahead = self.lookahead()?;
        }
        self.draft.stored.same_as_previous = same.is_some();
        self.previous = Some(self.draft);
        Ok(self.draft.stored)
    }

    /// Whether the draft names the same blocks as the previous store. Pairs are not compared.
    fn repeats(&self, previous: &Draft<'p>) -> bool {
        let text = |span: Option<Span>| span.map(|span| self.batch.text(span));
        let (new, old) = (&self.draft, previous);
        !new.tokens.is_empty()
            && new.tokens == old.tokens
            && new.hashes == old.hashes
            && new.extra_keys == old.extra_keys
            && new.mm_keys == old.mm_keys
            && new.lookahead == old.lookahead
            && new.stored.parent == old.stored.parent
            && new.stored.block_size == old.stored.block_size
            && new.stored.is_by_hash_alone() == old.stored.is_by_hash_alone()
            && new.stored.lora_id == old.stored.lora_id
            && text(new.stored.lora_name) == text(old.stored.lora_name)
            && text(new.stored.salt) == text(old.stored.salt)
    }

    fn extra_keys(&mut self) -> Read<Option<Span>> {
        if !self.draft.mm_keys.is_empty() {
            return self.mm_keys();
        }
        if self.draft.extra_keys.is_empty() {
            return Ok(None);
        }
        let of = (self.draft.stored.hashes.len, self.draft.stored.lora_name);
        let mut cursor = Cursor::new(self.draft.extra_keys);
        keys::extra_keys(&mut cursor, self.batch, self.limits, of).map(Some)
    }

    fn mm_keys(&mut self) -> Read<Option<Span>> {
        if !self.draft.extra_keys.is_empty() {
            return Err(RefusalReason::BadExtraKeys);
        }
        let mut cursor = Cursor::new(self.draft.mm_keys);
        let blocks = self.draft.stored.hashes.len;
        let found = keys::mm_keys(&mut cursor, self.batch, self.limits, blocks);
        let found = found.map_err(keys::as_bad_extra_keys)?;
        self.draft.stored.has_mm_keys = found.is_some();
        Ok(found)
    }

    fn lookahead(&mut self) -> Read<Span> {
        let blocks = self.draft.stored.hashes.len;
        if !self.draft.lookahead.is_empty() {
            let mut cursor = Cursor::new(self.draft.lookahead);
            return keys::lookahead(&mut cursor, self.batch, self.limits, blocks);
        }
        if self.seconds.ids.is_empty() {
            return Ok(Span::default());
        }
        let of = (blocks, self.draft.stored.block_size);
        keys::lookahead_of_pairs(self.batch, self.seconds, of)
    }
}
