//! The hosts, and the change from one configuration to the next.

use usher_lab::protected::{json, start_charon, wait_for_listener};
use usher_lab::{Daemon, Host, Lab, Mail, Role, Running, eventually};

use crate::place::{MAIL, PASSWORDS, Place, VMAIL};
use crate::table::{CONFIGURATIONS, Configuration};
use crate::{Outcome, progress};

const MAIL_POLICY: &str = "/etc/usher/policy.d/mail.policy";
const MODULES_POLICY: &str = "/etc/usher/policy.d/modules.policy";

/// dovecot as it is usually set up for users without accounts: one account has all mail. Without
/// TLS, so that the rows about the wire show what IPsec adds.
const DOVECOT: &str = "protocols = imap
listen = *
ssl = no
base_dir = /run/dovecot
disable_plaintext_auth = no
log_path = /var/log/dovecot.log
verbose_proctitle = yes
mail_location = maildir:/srv/mail/%u
mail_plugin_dir = /srv/lib
protocol imap {
  mail_plugins = planted
}
passdb {
  driver = passwd-file
  args = scheme=plain /etc/dovecot-users
}
userdb {
  driver = static
  args = uid=vmail gid=vmail home=/home/vmail
}
";

/// The same in dovecot 2.4's words.
const DOVECOT_2_4: &str = "dovecot_config_version = 2.4.0
dovecot_storage_version = 2.4.0
protocols = imap
listen = *
ssl = no
base_dir = /run/dovecot
auth_allow_cleartext = yes
log_path = /var/log/dovecot.log
verbose_proctitle = yes
mail_driver = maildir
mail_path = /srv/mail/%{user}
mail_plugin_dir = /srv/lib
protocol imap {
  mail_plugins {
    planted = yes
  }
}
passdb passwd-file {
  passwd_file_path = /etc/dovecot-users
  default_password_scheme = plain
}
userdb static {
  fields {
    uid = vmail
    gid = vmail
    home = /home/vmail
  }
}
";

/// The rules for the accounts that serve mail: alice and bob, and 5000, which is `vmail` of the usual
/// server. They have what is theirs, use what is root's as everyone may, run no set-user-ID program,
/// write no file of root's but new ones in /tmp, and see nothing of anybody else. dovecot 2.4 needs a file in
/// /tmp.
const BSDEXTENDED: &str = "mac bsdextended {
  rule subject uid alice bob 5000 object suid mode rs;
  rule subject uid alice bob 5000 object uid_of_subject mode arswx;
  rule subject uid alice bob 5000 object type cs mode rsw;
  rule subject uid alice bob 5000 object filesys \"/tmp\" uid root mode rswx;
  rule subject uid alice bob 5000 object uid root mode rsx;
  rule subject uid alice bob 5000 mode n;
}
";

/// The order in which the configurations are entered: a module is loaded once, and none after another
/// one was unloaded, which would take long.
const ORDER: [&str; 7] = [
    "plain",
    "netAuth",
    "netAuth + IPsec",
    "netAuth + biba",
    "all",
    "netAuth + bsdextended",
    "plain + bsdextended",
];

/// The columns in the order in which they are entered.
pub(crate) fn order(columns: &[usize]) -> Vec<usize> {
    let place = |name: &str| ORDER.iter().position(|one| *one == name);
    let mut sorted = columns.to_vec();
    sorted.sort_by_key(|column| place(CONFIGURATIONS[*column].name));
    sorted.dedup();
    sorted
}

/// The hosts and what runs on them.
pub(crate) struct World {
    /// dovecot as usual.
    _dovecot: Running,
    /// The usual mail server, without Usher.
    usual: Host,
    /// charon and the protectors, once a configuration has needed them.
    protectors: Vec<Daemon>,
    labeller: Option<Daemon>,
    loaded: Vec<&'static str>,
    /// laptop, mailhost with Usher, and the attacker's host on the wire between them.
    mail: Mail,
}

impl World {
    pub(crate) fn new(lab: Lab) -> Outcome<Self> {
        let mail = Mail::on(lab)?;
        // The attacker on the wire reads IPv4.
        mail.laptop.use_ipv4_only()?;
        mail.mailhost.use_ipv4_only()?;
        mail.lab.become_hub()?;
        let usual = mail.lab.host("usual")?;
        furnish(&usual)?;
        furnish(&mail.mailhost)?;
        compile(&usual, &mail.mailhost)?;
        // dovecot's imap, started alone, knows `~` and no name of its user's.
        let link = "for user in alice bob; do rm -r /home/$user/Maildir; \
                    ln -s /srv/mail/$user /home/$user/Maildir; done";
        mail.mailhost.run(["sh", "-e", "-c", link])?;
        usual.add_account(VMAIL, 5000)?;
        let settings = usual.dovecot_settings(DOVECOT, DOVECOT_2_4)?;
        usual.write("/etc/dovecot.conf", settings)?;
        usual.write("/etc/dovecot-users", PASSWORDS)?;
        let _dovecot = usual.spawn(["/usr/sbin/dovecot", "-F", "-c", "/etc/dovecot.conf"])?;
        wait_for_listener(&usual, 143)?;
        Ok(Self {
            _dovecot,
            usual,
            protectors: Vec::new(),
            labeller: None,
            loaded: Vec::new(),
            mail,
        })
    }

    /// The features that the configurations need and this kernel lacks, in the words of `usher doctor`.
    pub(crate) fn lacking(&self, ipsec: bool, modules: bool) -> Outcome<Vec<String>> {
        let mut needed = Vec::new();
        if ipsec {
            needed.extend([
                "protection",
                "IPsec",
                "listing sockets",
                "protected services",
            ]);
        }
        if modules {
            needed.extend(["LSM programs", "MAC framework"]);
        }
        Ok(self.mail.mailhost.lacking(&needed)?)
    }

    /// Puts a configuration in force.
    pub(crate) fn enter(&mut self, configuration: Configuration) -> Outcome<Place> {
        if configuration.name != "plain" {
            self.put_in_force(configuration)?;
        }
        let server = if configuration.netauth {
            &self.mail.mailhost
        } else {
            &self.usual
        };
        let place = Place::new(
            configuration,
            self.mail.laptop.clone(),
            server.clone(),
            self.mail.stranger.clone(),
        );
        place.restore()?;
        Ok(place)
    }

    fn put_in_force(&mut self, configuration: Configuration) -> Outcome {
        let protection = if configuration.ipsec {
            self.protectors()?;
            "protection encryption;"
        } else {
            ""
        };
        let (laptop, mailhost) = (&self.mail.laptop, &self.mail.mailhost);
        mailhost.write(MAIL_POLICY, server_policy(protection))?;
        laptop.write(MAIL_POLICY, client_policy(protection))?;
        let mut modules = String::new();
        if configuration.biba {
            modules += &format!("mac framework {{ multilabel \"{MAIL}\", \"/tmp\"; }}\n");
            mailhost.write(
                "/etc/usher/mac.login",
                "user root -\nuser alice biba/low\nuser bob biba/low\n",
            )?;
            mailhost.run([
                "sh",
                "-c",
                "find /srv/mail -mindepth 1 -exec setfmac biba/low {} +",
            ])?;
            mailhost.run(["setfmac", "biba/high", MAIL])?;
            mailhost.run(["setfmac", "biba/equal", "/tmp"])?;
        }
        if configuration.bsdextended {
            modules += BSDEXTENDED;
        }
        if (configuration.bsdextended || configuration.biba) && self.labeller.is_none() {
            self.labeller = Some(mailhost.start_daemon(Role::Labeller)?);
        }
        mailhost.write(MODULES_POLICY, modules)?;
        self.mail.apply()?;
        self.modules(configuration)?;
        if configuration.ipsec {
            self.wait_for_sas()?;
        }
        Ok(())
    }

    /// Loads and unloads modules, so that those of the configuration are in force and no others.
    fn modules(&mut self, configuration: Configuration) -> Outcome {
        let host = &self.mail.mailhost;
        for (name, wanted) in [
            ("biba", configuration.biba),
            ("bsdextended", configuration.bsdextended),
        ] {
            let is_loaded = self.loaded.contains(&name);
            if wanted && !is_loaded {
                progress(&format!("loading the module {name}"));
                host.run(["usher", "mac", "load", name])?;
                self.loaded.push(name);
            }
            if !wanted && is_loaded {
                progress(&format!("unloading the module {name}"));
                host.run(["usher", "mac", "unload", name])?;
                self.loaded.retain(|loaded| *loaded != name);
            }
        }
        Ok(())
    }

    /// Has charon and a protector run on both hosts.
    fn protectors(&mut self) -> Outcome {
        if !self.protectors.is_empty() {
            return Ok(());
        }
        progress("charon and the protectors start");
        for host in [&self.mail.laptop, &self.mail.mailhost] {
            self.protectors.push(start_charon(host)?);
        }
        for host in [&self.mail.laptop, &self.mail.mailhost] {
            self.protectors.push(host.start_daemon(Role::Protector)?);
        }
        Ok(())
    }

    fn wait_for_sas(&self) -> Outcome {
        progress("waiting for SAs");
        for host in [&self.mail.laptop, &self.mail.mailhost] {
            eventually("SAs are there", || {
                let peers = json(host, &["protection", "peers"])?;
                Ok(peers["peers"][0]["classes"][0]["protected"] == true)
            })?;
        }
        Ok(())
    }
}

fn server_policy(protection: &str) -> String {
    format!(
        "users mail {{ member alice, bob; }}

service imap {{
  program {imap}
    \"-o\" \"mail_plugins=planted\" \"-o\" \"mail_plugins/planted=yes\" \"-o\" \"mail_plugin_dir=/srv/lib\";
  listen 143;
  style connection;
  users mail;
  hosts laptop;
  connect none;
  {protection}
}}
",
        imap = usher_lab::imap!()
    )
}

fn client_policy(protection: &str) -> String {
    format!(
        "users mail {{ member alice, bob; }}

client mail {{
  users mail;
  service imap at mailhost port 143;
  protocol imap;
  {protection}
}}
"
    )
}

/// What every mail server has: file systems of its own, the planted plugin, and the administrator's
/// mistakes.
fn furnish(host: &Host) -> Outcome {
    let mounts = "mount -t tmpfs -o mode=755 none /srv && mount -t tmpfs -o mode=1777 none /tmp && \
                  mkdir -p /srv/mail /srv/lib /srv/bin /srv/root /srv/backup && \
                  mount -t tmpfs -o mode=755 none /srv/mail && chmod 700 /srv/root && \
                  mkdir -p /var/spool/cron/crontabs && chgrp crontab /var/spool/cron/crontabs && \
                  chmod 1730 /var/spool/cron/crontabs";
    host.run(["sh", "-e", "-c", mounts])?;
    host.write_program(
        "/srv/bin/nightly",
        "#!/bin/sh\n# Reads each user's settings of the mail folder.\nfor user in alice bob; do\n\
         \x20 if [ -r /srv/mail/$user/settings ]; then . /srv/mail/$user/settings; fi\ndone\n\
         date >/srv/root/done\n",
    )?;
    Ok(())
}

/// Puts the planted plugin and the set-user-ID program on both mail servers.
fn compile(first: &Host, second: &Host) -> Outcome {
    const PLUGIN: &str = "/srv/lib/lib99_planted_plugin.so";
    const SET_USER_ID: &str = "/srv/bin/mailctl";
    first.compile_alone("planted_imap.c", &["-shared", "-fPIC"], PLUGIN)?;
    first.compile_alone("set_user_id.c", &[], SET_USER_ID)?;
    for program in [PLUGIN, SET_USER_ID] {
        std::fs::copy(first.path(program), second.path(program))?;
    }
    for host in [first, second] {
        host.run(["chmod", "4755", SET_USER_ID])?;
    }
    Ok(())
}
