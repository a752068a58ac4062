//! An authority, its certificates, and the hosts that trust it.

use crate::attack::Result;
use crate::users::{self, add, keygen};
use usher_lab::{Host, Lab, Mail};

pub const AUTHORITIES: &str = "/etc/usher/user_ca_keys";

/// Has the authority of this name certify a user's key, on laptop, with these additional options of
/// ssh-keygen; returns the file.
pub fn certify(laptop: &Host, authority: &str, user: &str, options: &[&str]) -> Result<String> {
    let public = format!("/root/{user}.pub");
    laptop.run(["cp", &format!("/home/{user}/.ssh/id_ed25519.pub"), &public])?;
    let authority = format!("/root/{authority}");
    let sign = ["ssh-keygen", "-q", "-s", &authority];
    laptop.run([&sign[..], options, &[&public]].concat())?;
    Ok(format!("/root/{user}-cert.pub"))
}

/// The same for an hour, in the user's name, with a serial number and a key id that has it.
pub fn certify_user(laptop: &Host, user: &str, serial: &str) -> Result<String> {
    let id = format!("{user}-{serial}");
    let options = ["-I", &id, "-n", user, "-z", serial, "-V", "-1m:+1h"];
    certify(laptop, "ca", user, &options)
}

/// Has the user sign with a certificate from now on.
pub fn give(mail: &Mail, user: &str, certificate: &str) -> Result {
    add(&mail.laptop, user, &["--certificate", certificate])?;
    Ok(())
}

pub fn apply(mail: &Mail) -> Result<String> {
    Ok(mail.mailhost.run(["usher", "policy", "apply"])?.stdout)
}

/// An authority that mailhost trusts, alice and bob known there by its certificates only.
pub fn certified() -> Result<Mail> {
    let mail = Lab::mail()?;
    let authority = keygen(&mail.laptop, "ca")?;
    mail.mailhost.write(AUTHORITIES, authority)?;
    mail.mailhost
        .run(["rm", "-r", "/etc/usher/users/alice", "/etc/usher/users/bob"])?;
    apply(&mail)?;
    for (user, serial) in [("alice", "7"), ("bob", "8")] {
        give(&mail, user, &certify_user(&mail.laptop, user, serial)?)?;
    }
    Ok(mail)
}

/// The reasons for the ends of a user's sessions, the latest first.
pub fn recent(mail: &Mail, user: &str) -> Result<Vec<String>> {
    let ended = users::recent(mail)?.into_iter().rev();
    let of_user = ended.filter(|(of, _)| of == user);
    Ok(of_user.map(|(_, reason)| reason).collect())
}
