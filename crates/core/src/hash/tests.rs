//! The chain against reference values, against itself grown step by step, and its refusals. Bytes
//! are compared with Python's own pickle and CBOR in the differential tests of the package.

use super::*;
use proptest::prelude::*;

fn hex(digest: Digest) -> String {
    digest
        .as_bytes()
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn seeded(algo: HashAlgo, block_size: u32) -> ChainSpec<'static> {
    let root = none_hash(algo, Some("0")).unwrap();
    ChainSpec::new(algo, root, block_size).unwrap()
}

fn hashes(spec: &ChainSpec<'_>, tokens: &[u32]) -> Vec<Digest> {
    let mut out = Vec::new();
    Chain::new(spec).extend(spec, tokens, |digest| out.push(digest));
    out
}

#[test]
fn names_and_algorithms_are_one_to_one() {
    for (name, algo) in HashAlgo::NAMES {
        assert_eq!(algo.name(), name);
        assert_eq!(HashAlgo::from_name(name), Some(algo));
    }
    assert_eq!(HashAlgo::from_name("md5"), None);
}

#[test]
fn seed_hashes_are_the_engines() {
    let expected = "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198";
    assert_eq!(
        none_hash(HashAlgo::Sha256, None).map(hex).as_deref(),
        Some(expected)
    );
    let expected = "1ebe36576dcb573f26b99533a20aaeca";
    assert_eq!(
        none_hash(HashAlgo::XxhashCbor, Some("0"))
            .map(hex)
            .as_deref(),
        Some(expected)
    );
}

#[test]
fn a_random_seed_is_not_guessed() {
    assert_eq!(none_hash(HashAlgo::Xxhash, None), None);
    assert_eq!(none_hash(HashAlgo::XxhashCbor, None), None);
}

#[test]
fn the_first_block_of_sixteen_ones_is_the_engines() {
    let spec = seeded(HashAlgo::Sha256, 16);
    let expected = "cfc3ba9bee31343e6778d774e1c6b9e51c929668e69020f0770fde4326e21694";
    assert_eq!(
        hashes(&spec, &[1; 31])
            .into_iter()
            .map(hex)
            .collect::<Vec<_>>(),
        [expected]
    );
}

#[test]
fn a_key_is_the_last_eight_bytes_read_big_endian() {
    let mut bytes = [0; 32];
    bytes[24..].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
    assert_eq!(
        Digest::from_bytes(&bytes).unwrap().key(),
        0x0102_0304_0506_0708
    );
    assert_eq!(
        Digest::from_bytes(&bytes[16..]).unwrap().key(),
        0x0102_0304_0506_0708
    );
}

#[test]
fn chain_keys_are_the_keys_of_the_chain() {
    let spec = seeded(HashAlgo::Xxhash, 2);
    let mut keys = Vec::new();
    chain_keys(&spec, &[1, 2, 3, 4, 5], &mut keys);
    assert_eq!(
        keys,
        hashes(&spec, &[1, 2, 3, 4, 5])
            .iter()
            .map(Digest::key)
            .collect::<Vec<_>>()
    );
}

/// Items that overlap each other: the engine stops at the first that continues after the block.
#[test]
fn the_walk_over_media_stops_at_an_item_that_goes_on() {
    let long = MediaItem {
        id: "long",
        offset: 0,
        length: 8,
    };
    let inner = MediaItem {
        id: "inner",
        offset: 0,
        length: 2,
    };
    let last = MediaItem {
        id: "last",
        offset: 6,
        length: 2,
    };
    let with = |media: &[MediaItem<'_>]| {
        let spec = seeded(HashAlgo::Sha256, 4)
            .with_extra(ExtraKeys {
                media,
                ..ExtraKeys::default()
            })
            .unwrap();
        hashes(&spec, &[1; 8])
    };
    assert_eq!(with(&[long, inner, last]), with(&[long, last]));
    assert_ne!(with(&[inner, long, last]), with(&[long, last]));
}

#[test]
fn an_empty_block_is_refused() {
    let root = none_hash(HashAlgo::Sha256, None).unwrap();
    let error = ChainSpec::new(HashAlgo::Sha256, root, 0).unwrap_err();
    assert!(error.to_string().starts_with("block_size is 0"));
}

#[test]
fn a_seed_hash_of_another_algorithm_is_refused() {
    let root = none_hash(HashAlgo::Sha256, None).unwrap();
    let error = ChainSpec::new(HashAlgo::Xxhash, root, 16).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the seed hash has 32 bytes, xxhash digests have 16")
    );
}

#[test]
fn a_digest_has_16_or_32_bytes() {
    assert!(
        Digest::from_bytes(&[0; 20])
            .unwrap_err()
            .to_string()
            .contains("20 bytes")
    );
}

#[test]
fn media_out_of_order_is_refused() {
    let item = |offset| MediaItem {
        id: "m",
        offset,
        length: 1,
    };
    let media = [item(3), item(2)];
    let extra = ExtraKeys {
        media: &media,
        ..ExtraKeys::default()
    };
    let error = seeded(HashAlgo::Sha256, 4).with_extra(extra).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("item 1 has offset 2, the one before it 3")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// However the tokens arrive, the hashes are those of the whole request.
    #[test]
    fn a_grown_chain_equals_the_chain_of_the_whole(
        tokens in prop::collection::vec(any::<u32>(), 0..80),
        cuts in prop::collection::vec(0_usize..80, 0..6),
        algo in prop::sample::select(HashAlgo::NAMES.map(|(_, algo)| algo).to_vec()),
        block_size in 1_u32..9,
        lookahead in 0_u32..4,
        lengths in prop::collection::vec((0_u32..9, 1_u32..20), 0..4),
    ) {
        let mut at = 0;
        let place = |(gap, length)| {
            let item = MediaItem { id: "m", offset: at + gap, length };
            at += gap + length;
            item
        };
        let media: Vec<_> = lengths.into_iter().map(place).collect();
        let extra = ExtraKeys { cache_salt: Some("s"), media: &media, ..ExtraKeys::default() };
        let spec = seeded(algo, block_size).with_lookahead(lookahead).with_extra(extra).unwrap();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(tokens.len())).collect();
        cuts.sort_unstable();
        cuts.push(tokens.len());

        let mut grown = Chain::new(&spec);
        let mut seen = Vec::new();
        for cut in cuts {
            grown.extend(&spec, &tokens[..cut], |digest| seen.push(digest));
        }
        prop_assert_eq!(grown.num_blocks, seen.len());
        prop_assert_eq!(seen, hashes(&spec, &tokens));
    }
}
