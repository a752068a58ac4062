//! Tokens on a network that loses packets and brings them in another order (netem). What that does
//! to single SYNs, window and all, is in usher-kernel's tests; here it happens to a real client.
#![forbid(unsafe_code)]

mod greeter;

use greeter::{Result, connect, has_ticket, topology};
use usher_lab::Role;

/// Fewer than the window is wide: whose SYN was lost comes a second later, behind all others.
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
    // All are served. One that is lost twice has its connection announced, and those that are begun
    // after that as well.
    connect(&mail, "alice", AT_ONCE, 1)?;
    let count = |name| mail.mailhost.number(Role::Keeper, name);
    let accepted = count("token_accepted")?;
    assert!(accepted > u64::from(AT_ONCE) / 2, "{accepted}");
    // An answer was lost, and the SYN came again.
    assert!(count("token_repeated")? > 0);
    // No token is taken for another one. A SYN that was sent twice may be overtaken by the end of its
    // connection: the late copy is refused as replayed, and rightly so.
    for refused in ["token_mismatch", "token_foreign", "token_other_syn"] {
        assert_eq!(count(refused)?, 0, "{refused}");
    }
    Ok(())
}
