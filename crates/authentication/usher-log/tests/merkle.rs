//! The tree against RFC 6962: section 2.1 written out as its recursion, and known answers.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use std::convert::Infallible;
use usher_log::merkle::{
    Frontier, Hash, Node, empty_root, leaf_hash, node_hash, prove_inclusion, verify_inclusion,
};

/// MTH(D[n]).
fn reference_root(leaves: &[Vec<u8>]) -> Hash {
    match leaves {
        [] => empty_root(),
        [leaf] => leaf_hash(leaf),
        _ => {
            let (left, right) = leaves.split_at(largest_power_below(leaves.len()));
            node_hash(&reference_root(left), &reference_root(right))
        }
    }
}

/// PATH(m, D[n]).
fn reference_path(index: usize, leaves: &[Vec<u8>]) -> Vec<Hash> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let middle = largest_power_below(leaves.len());
    let (left, right) = leaves.split_at(middle);
    let (mut path, other) = if index < middle {
        (reference_path(index, left), right)
    } else {
        (reference_path(index - middle, right), left)
    };
    path.push(reference_root(other));
    path
}

fn largest_power_below(count: usize) -> usize {
    (0..)
        .map(|bit| 1 << bit)
        .take_while(|power| *power < count)
        .last()
        .unwrap()
}

fn leaves(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|index| index.to_be_bytes()[6..].to_vec())
        .collect()
}

fn frontier(leaves: &[Vec<u8>]) -> Frontier {
    let mut tree = Frontier::default();
    for leaf in leaves {
        tree.push(leaf_hash(leaf), |_, _, _| {});
    }
    tree
}

fn lookup(leaves: &[Vec<u8>]) -> impl FnMut(Node) -> Result<Hash, Infallible> {
    |Node { height, index }| {
        let first = (index as usize) << height;
        Ok(reference_root(&leaves[first..first + (1 << height)]))
    }
}

fn hexadecimal(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_roots_of_the_known_leaves_are_the_known_ones() {
    // The leaves that implementations of Certificate Transparency share.
    let leaves: [&[u8]; 8] = [
        b"",
        b"\x00",
        b"\x10",
        b"\x20\x21",
        b"\x30\x31",
        b"\x40\x41\x42\x43",
        b"\x50\x51\x52\x53\x54\x55\x56\x57",
        b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
    ];
    let roots = [
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ];
    let mut tree = Frontier::default();
    assert_eq!(hexadecimal(&tree.root()), roots[0]);
    for (leaf, root) in leaves.iter().zip(&roots[1..]) {
        tree.push(leaf_hash(leaf), |_, _, _| {});
        assert_eq!(hexadecimal(&tree.root()), *root);
    }
}

#[test]
fn every_proof_of_a_small_tree_is_the_references_and_verifies() {
    let all = leaves(40);
    for size in 1..=all.len() {
        let tree = &all[..size];
        let root = reference_root(tree);
        assert_eq!(frontier(tree).root(), root);
        for index in 0..size {
            let Ok(proof) = prove_inclusion(index as u64, size as u64, lookup(tree));
            assert_eq!(proof, reference_path(index, tree), "{index} of {size}");
            let leaf = leaf_hash(&tree[index]);
            assert!(verify_inclusion(
                &leaf,
                index as u64,
                size as u64,
                &root,
                &proof
            ));
        }
    }
}

#[test]
fn the_hashes_to_store_are_those_of_whole_subtrees() {
    let all = leaves(600);
    let mut tree = Frontier::default();
    let mut stored = Vec::new();
    for leaf in &all {
        tree.push(leaf_hash(leaf), |level, index, hash| {
            stored.push((level, index, *hash));
        });
    }
    let level_1: Vec<_> = stored.iter().filter(|(level, _, _)| *level == 1).collect();
    assert_eq!(
        level_1,
        [
            &(1, 0, reference_root(&all[..256])),
            &(1, 1, reference_root(&all[256..512]))
        ]
    );
    assert_eq!(stored.len(), 602);
}

proptest! {
    #[test]
    fn a_changed_inclusion_proof_verifies_nothing(
        size in 2..300_usize,
        place in any::<prop::sample::Index>(),
        change in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let tree = leaves(size);
        let index = place.index(size);
        let (root, leaf) = (reference_root(&tree), leaf_hash(&tree[index]));
        let Ok(proof) = prove_inclusion(index as u64, size as u64, lookup(&tree));
        let check = |index: usize, size: usize, root: &Hash, proof: &[Hash]| {
            verify_inclusion(&leaf, index as u64, size as u64, root, proof)
        };
        prop_assert!(check(index, size, &root, &proof));
        let other = (index + 1) % size;
        prop_assert!(!check(other, size, &root, &proof));
        prop_assert!(!check(index, size, &root, &proof[1..]));
        prop_assert!(!check(index, size, &root, &[&proof[..], &[root]].concat()));
        prop_assert!(!check(size, size, &root, &proof));
        let mut wrong = proof.clone();
        wrong[change.index(proof.len())][change.index(32)] ^= 1 << bit;
        prop_assert!(!check(index, size, &root, &wrong));
        let mut wrong = root;
        wrong[change.index(32)] ^= 1 << bit;
        prop_assert!(!check(index, size, &wrong, &proof));
    }
}
