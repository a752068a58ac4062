//! A policy of 2,000 applications with 5,000 networks.

use std::fmt::Write;
use std::time::Instant;

use usher_protection::{Names, compile};

use crate::read;

/// A large policy. Each application has networks of its own and a range, and one of eight lists of items.
fn large() -> String {
    let mut text = String::new();
    for number in 0..2000_u32 {
        let (high, low) = (number / 250, number % 250);
        let port = 1 + number % 8;
        let _ = writeln!(
            text,
            "application program{number} {{ network 10.{high}.{low}.0/24 trusted; {} network \
             0.0.0.0/0 protected P; protection P {{ localport={port} remoteport=any encryption \
             mandatory; localport=any remoteport=any authentication optional; }} }}",
            match number % 2 {
                0 => format!("network 172.16.{high}.{low} - 172.17.{low}.255 untrusted;"),
                _ => String::new(),
            }
        );
    }
    text
}

#[test]
fn a_large_policy_compiles_whole() {
    let text = large();
    let begun = Instant::now();
    let policy = read(&text);
    let read = begun.elapsed();
    let networks: usize = policy.iter().map(|block| block.networks.len()).sum();
    assert_eq!((policy.len(), networks), (2000, 5000));
    let begun = Instant::now();
    let tables = compile(&policy, &Names::default(), u16::MAX).expect("tables");
    let compiled = begun.elapsed();
    assert_eq!(
        (tables.applications.len(), tables.item_lists.len()),
        (2000, 8)
    );
    let entries: usize = tables
        .applications
        .iter()
        .map(|rules| rules.networks.len())
        .sum();
    println!("{entries} entries; read in {read:?}, compiled in {compiled:?}");
    assert_eq!(
        tables,
        compile(&policy, &Names::default(), u16::MAX).expect("tables")
    );
}
