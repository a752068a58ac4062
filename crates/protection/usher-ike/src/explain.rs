//! The reason of a failed attempt to negotiate, from charon's log.

/// Returns whether an attempt ended because the SAs were there already.
pub(crate) fn has_duplicate(lines: &[String]) -> bool {
    lines.iter().any(|line| line.contains("existing duplicate"))
}

/// The reason of a failed attempt, in plain words where charon's log has a known one.
pub(crate) fn explain(lines: &[String]) -> Option<String> {
    const KNOWN: [(&str, &str); 13] = [
        (
            "constraint check failed",
            "its IKE key is not the `ike-key` of its `host` block",
        ),
        (
            "no trusted",
            "its IKE key is not the `ike-key` of its `host` block",
        ),
        (
            "signature validation failed",
            "its IKE key is not the `ike-key` of its `host` block",
        ),
        (
            "AUTHENTICATION_FAILED",
            "it does not accept this host's IKE key or name: compare `ike-key` in both policies",
        ),
        (
            "unable to install",
            "this host's kernel does not take the SAs: `usher doctor` says whether it has IPsec",
        ),
        (
            "no acceptable",
            "no algorithm in common: compare the versions and plugins of charon on both hosts",
        ),
        (
            "NO_PROPOSAL_CHOSEN",
            "it has no such class, or no algorithm in common, or its kernel does not take the SAs: apply \
             the policy there and see `usher protection peers`",
        ),
        (
            "TS_UNACCEPTABLE",
            "it has no such class, or does not accept this host's address: apply the policy there, and \
             compare `address` of this host in it; a peer without Usher needs a child with the class's \
             name as its security label, or `unlabelled` in its `host` block here (docs/protection.md)",
        ),
        (
            "IDr payload missing",
            "it ended the negotiation before it had authenticated itself, as strongSwan 6 does where its kernel does \
             not take the SAs: `usher doctor` there says whether it has IPsec",
        ),
        (
            "retransmit",
            "it does not answer: is its protector running, and does a firewall pass UDP port 500 and \
             ESP?",
        ),
        (
            "unreachable",
            "it cannot be reached: there is no route to its address",
        ),
        (
            "no private key found",
            "charon does not have this host's IKE key: restart the protector",
        ),
        // The last: if an answer lacks the label, charon logs nothing more here.
        (
            "failed to establish CHILD_SA",
            "charon does not take its answer, and the journal of charon says why: a peer without Usher must \
             support security labels (RFC 9478) and answer with this class's name, or have `unlabelled` in its \
             `host` block here (docs/protection.md)",
        ),
    ];
    let said = |part: &str| lines.iter().any(|line| line.contains(part));
    let known = KNOWN.iter().find(|(part, _)| said(part));
    known.map(|(_, words)| (*words).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sas_that_came_meanwhile_are_no_failure() {
        let duplicate = "not establishing CHILD_SA encryption{2} due to existing duplicate {1}";
        assert!(has_duplicate(&[duplicate.to_owned()]));
        assert!(!has_duplicate(&[
            "received AUTHENTICATION_FAILED notify error".to_owned()
        ]));
    }

    #[test]
    fn reasons_are_in_plain_words() {
        let lines = ["received AUTHENTICATION_FAILED notify error".to_owned()];
        let reason = explain(&lines).expect("a known one");
        assert!(reason.contains("ike-key"), "{reason}");
        let lines = ["IDr payload missing".to_owned()];
        let reason = explain(&lines).expect("a known one");
        assert!(reason.contains("usher doctor"), "{reason}");
        assert_eq!(explain(&["something else".to_owned()]), None);
    }
}
