//! Removes from the disk what a checkpoint does not have.

use crate::durable;
use crate::error::LogError;
use crate::layout::Layout;
use crate::merkle::{HASH_SIZE, TILE_HEIGHT, TILE_WIDTH};

/// Removes everything after the records of a tree of `size` leaves.
pub(crate) fn cut_off(layout: &Layout, size: u64, bundle_length: u64) -> Result<(), LogError> {
    cut_bundles(layout, size, bundle_length)?;
    cut_tiles(layout, size)?;
    durable::cut(&durable::prepared(&layout.checkpoint()), 0)?;
    Ok(())
}

pub(crate) fn cut_bundles(layout: &Layout, size: u64, length: u64) -> Result<(), LogError> {
    let mut number = size / TILE_WIDTH;
    durable::cut(&layout.bundle(number), length)?;
    loop {
        number += 1;
        if !durable::cut(&layout.bundle(number), 0)? {
            return Ok(());
        }
    }
}

pub(crate) fn cut_tiles(layout: &Layout, size: u64) -> Result<(), LogError> {
    for level in 0..u64::BITS / TILE_HEIGHT {
        let count = size >> (level * TILE_HEIGHT);
        let mut number = count / TILE_WIDTH;
        let length = count % TILE_WIDTH * HASH_SIZE as u64;
        let mut there = durable::cut(&layout.tile(level, number), length)?;
        while there {
            number += 1;
            there = durable::cut(&layout.tile(level, number), 0)?;
        }
    }
    Ok(())
}
