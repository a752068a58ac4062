//! Tokens on a network that loses and reorders packets (netem). usher-kernel's tests show the effect on
//! single SYNs and the window; here it happens to a real client.
#![forbid(unsafe_code)]

mod greeter;

use greeter::{Result, connect, has_ticket, topology};
use usher_lab::Role;

/// Fewer than the window: a connection whose SYN was lost comes a second later, behind all others.
const AT_ONCE: u32 = 100;

#[test]
fn syns_that_are_lost_or_overtaken_are_accepted_once() -> Result {
    let mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    for host in [&mail.laptop, &mail.mailhost] {
        let disturbed = host
            .command([
                "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "20ms", "20ms",
                "reorder", "30%", "50%", "loss", "8%",
            ])
            .run()?;
        if disturbed.stderr.contains("qdisc kind is unknown") {
            println!("skipped: this kernel has no netem");
            return Ok(());
        }
        assert!(disturbed.status.success(), "{disturbed:?}");
    }
    // All are served. If a SYN is lost twice, its connection is announced, and so are those begun after
    // that.
    connect(&mail, "alice", AT_ONCE, 1)?;
    let count = |name| mail.mailhost.number(Role::Keeper, name);
    let accepted = count("token_accepted")?;
    assert!(accepted > u64::from(AT_ONCE) / 2, "{accepted}");
    // An answer was lost, and the SYN came again.
    assert!(count("token_repeated")? > 0);
    // No token is taken for another one. The end of a connection may overtake its repeated SYN: the late
    // copy is correctly refused as replayed.
    for refused in ["token_mismatch", "token_foreign", "token_other_syn"] {
        assert_eq!(count(refused)?, 0, "{refused}");
    }
    Ok(())
}
