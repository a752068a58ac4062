//! Peers that are held to a class: where its level is optional, plaintext no longer passes.

use std::net::IpAddr;

use usher_protection::Class;

use super::Ipsec;
use crate::error::IpsecError;
use crate::spd::{self, Action, Entry};

impl Ipsec {
    /// Holds a peer to a class that it has negotiated: where the policy says optional, plaintext no
    /// longer passes. Returns true if the peer was not held before. Then call [`Ipsec::adopt`], because
    /// connections that it has begun in the clear have no marks.
    ///
    /// # Errors
    /// [`IpsecError::HeldFull`], or the kernel's error; the peer is not held then.
    pub fn hold(&mut self, class: Class, peer: IpAddr) -> Result<bool, IpsecError> {
        if self.held.contains(&(class, peer)) {
            return Ok(false);
        }
        self.monitor.hold(class, peer)?;
        // This runs for each new peer, so it looks at no entries of other peers.
        if let Err(error) = self.enter_held(class, peer) {
            if let Err(error) = self.monitor.let_go(class, peer) {
                tracing::error!(%error, "cannot let go of a peer: it is still held, but its SPD \
                    entry is missing");
            }
            return Err(error);
        }
        self.held.insert((class, peer));
        Ok(true)
    }

    fn enter_held(&mut self, class: Class, peer: IpAddr) -> Result<(), IpsecError> {
        let (selected, entry) = spd::of_held(class, peer, self.mask);
        // If the peer has an address of this host, its entry lets everything pass, and stays.
        let present = self.now.wanted.get(&selected);
        if present.is_some_and(|present| present.action == Some(Action::Allow)) {
            return Ok(());
        }
        let asking = spd::asking(&self.now.wanted, class, peer).into_iter();
        let of_peer = asking.filter(|(selected, _)| selected.destination == peer.into());
        let required = of_peer.map(|(selected, present)| {
            let action = entry.action;
            (selected, Entry { action, ..present })
        });
        for (selected, entry) in required.chain([(selected, entry)]) {
            self.spd.put(&selected, &entry)?;
            self.now.wanted.insert(selected, entry);
        }
        Ok(())
    }

    /// As [`Self::hold`], for many peers; those that are held already stay so.
    ///
    /// # Errors
    /// As [`Self::hold`]; some are held then.
    pub fn hold_all(
        &mut self,
        peers: impl IntoIterator<Item = (Class, IpAddr)>,
    ) -> Result<(), IpsecError> {
        for (class, peer) in peers {
            self.hold(class, peer)?;
        }
        Ok(())
    }

    /// No longer holds a peer to a class. Returns whether it was held.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn let_go(&mut self, class: Class, peer: IpAddr) -> Result<bool, IpsecError> {
        let was_held = self.monitor.let_go(class, peer)?;
        self.held.remove(&(class, peer));
        self.enter_released()?;
        Ok(was_held)
    }

    /// Lets go of all held peers except those for which `stays` returns true, including peers that an
    /// earlier process held. Returns their number.
    ///
    /// # Errors
    /// The kernel's error; some are let go then.
    pub fn retain_held(
        &mut self,
        stays: impl Fn(Class, IpAddr) -> bool,
    ) -> Result<usize, IpsecError> {
        let held = self.held.iter().copied();
        let gone: Vec<_> = held.filter(|&(class, peer)| !stays(class, peer)).collect();
        for &(class, peer) in &gone {
            self.monitor.let_go(class, peer)?;
            self.held.remove(&(class, peer));
        }
        if !gone.is_empty() {
            self.enter_released()?;
        }
        Ok(gone.len())
    }

    /// Enters the policy's own entries for peers that are no longer held.
    fn enter_released(&mut self) -> Result<(), IpsecError> {
        if self.now.is_own {
            self.now.wanted = self.wanted_now();
            self.put_back()?;
        }
        Ok(())
    }
}
