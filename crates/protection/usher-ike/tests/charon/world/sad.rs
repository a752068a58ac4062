//! The SAs of a host's kernel.

use std::io;

use usher_ike::{KernelSad, KernelSas, Placed};
use usher_ipsec::{OutboundSa, Sad};

/// The SAs of a host's kernel, as the protector has them.
pub(super) struct HostSad(pub(super) Sad);

impl KernelSad for HostSad {
    fn list(&mut self) -> io::Result<KernelSas> {
        self.0.spis().map_err(io::Error::other)
    }

    fn has(&mut self, sa: Placed) -> io::Result<bool> {
        self.0.has(outbound(sa)).map_err(io::Error::other)
    }

    fn place(&mut self, sa: Placed) -> io::Result<()> {
        self.0.place(outbound(sa)).map_err(io::Error::other)
    }

    fn place_last(&mut self, sa: Placed) -> io::Result<()> {
        self.0.place_last(outbound(sa)).map_err(io::Error::other)
    }

    fn place_first(&mut self, sa: Placed) -> io::Result<()> {
        self.0.place_first(outbound(sa)).map_err(io::Error::other)
    }

    fn keep_places(&mut self, known: &KernelSas) -> io::Result<()> {
        let is_known = |to, spi| known.contains(&(to, spi));
        self.0.keep_places(is_known).map_err(io::Error::other)
    }
}

fn outbound(sa: Placed) -> OutboundSa {
    let Placed { to, spi, is_ah } = sa;
    OutboundSa { to, spi, is_ah }
}
