//! `usher policy explain`: whether a user may use a service, how, and the lines that decide.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use usher_analysis::{Decision, Offer, Question, Request, Verdict};
use usher_base::{ServiceName, UserName};
use usher_policy::protection::Kind;
use usher_policy::{Clause, DEFAULT_UMASK, Place, Programs, Protocol, Style, Units, joined};

use super::hosts::{Lines, Loaded};
use super::who_can::certificate;
use super::{At, NO, NOT_KNOWN, spelling};
use crate::failure::Failure;
use crate::output::Output;

/// Decides one connection, prints the reasons, and returns the exit code.
///
/// # Errors
/// When neither host's policy is known.
pub fn run(
    output: &Output,
    loaded: &Loaded,
    (user, service, port): (At<UserName>, At<ServiceName>, Option<u16>),
) -> Result<u8, Failure> {
    let question = Question {
        user: user.name,
        client: user.host,
        service: service.name,
        server: service.host,
        port,
    };
    let warn_of_names = || {
        spelling::warn_of_user(&loaded.network, &question.user);
        spelling::warn_of_service(&loaded.network, &question.service);
        spelling::warn_of_host(&loaded.network, &question.client);
        spelling::warn_of_host(&loaded.network, &question.server);
    };
    let decision = loaded.network.decide(&question).map_err(|error| {
        warn_of_names();
        Failure::Refused(format!("{error}: give it with --host"))
    })?;
    let Question { client, server, .. } = &decision.question;
    let lines = Lines::of(loaded, |host| host == client || host == server)?;
    // JSON of `usher policy explain`: [`decision`].
    output.print(&view(&decision, &lines), || {
        decision_text(&decision, &lines)
    });
    Ok(match decision.verdict {
        Verdict::Permitted => 0,
        Verdict::NotRefusedHere | Verdict::WithCertificate => NOT_KNOWN,
        Verdict::Refused => {
            warn_of_names();
            NO
        }
    })
}

/// A decision with its reasons, texts and places, for programs.
pub fn view(decision: &Decision, lines: &Lines<'_>) -> Value {
    // JSON object [`policy_line`]:
    //   place: The [`Place`] in the policy, or null.
    //   says: The [`Clause`] there.
    let line = |place: Option<Place>, clause: &Clause| json!({ "place": place, "says": clause });
    let objections: Vec<Value> = decision
        .objections
        .iter()
        .map(|objection| {
            let clauses = objection.clauses.iter();
            let change: Vec<Value> = clauses
                .map(|clause| line(lines.nearest(&objection.host, clause), clause))
                .collect();
            // JSON object [`objection`]:
            //   host: The host whose policy or users would have to change.
            //   reason: The [`Reason`].
            //   text: The reason, for people.
            //   remedy: The remedy, or null.
            //   lines: List of [`policy_line`]: those that would have to change; empty if one would have to be added.
            json!({
                "host": objection.host, "reason": objection.reason,
                "text": objection.reason.to_string(), "remedy": objection.reason.remedy(),
                "lines": change,
            })
        })
        .collect();
    let grounds: Vec<Value> = decision
        .grounds
        .iter()
        .filter_map(|ground| {
            let place = lines.place(&ground.host, &ground.clause)?;
            // JSON object [`ground`]:
            //   host: The host of the policy.
            //   place: The [`Place`] in it.
            //   says: The [`Clause`] there that permits the connection.
            Some(json!({ "host": ground.host, "place": place, "says": ground.clause }))
        })
        .collect();
    // JSON object [`decision`]:
    //   question: The [`Question`], with the hosts' names in these policies.
    //   verdict: The [`Verdict`].
    //   not_known: List of texts: hosts of the question whose policies are not known here.
    //   principals: List of texts: the user's certificate must name one of these.
    //   objections: List of [`objection`]; empty unless refused.
    //   grounds: List of [`ground`]: what permits it on each side, whatever the verdict.
    //   how: How the connection is made and served: [`How`].
    json!({
        "question": decision.question, "verdict": decision.verdict,
        "not_known": decision.not_known, "principals": decision.principals,
        "objections": objections, "grounds": grounds, "how": decision.how,
    })
}

fn decision_text(decision: &Decision, lines: &Lines<'_>) -> String {
    let Question {
        user,
        client,
        service,
        server,
        ..
    } = &decision.question;
    let answer = match decision.verdict {
        Verdict::Permitted => "may use",
        Verdict::NotRefusedHere => "is not refused here at",
        Verdict::WithCertificate if decision.not_known.is_empty() => "may use",
        Verdict::WithCertificate => "is not refused here at",
        Verdict::Refused => "may NOT use",
    };
    let certificate = certificate(decision);
    let mut text = format!("{user}@{client} {answer} {service}@{server}{certificate}\n");
    for host in &decision.not_known {
        text += &format!("  the policy of {host} is not known here\n");
    }
    for objection in &decision.objections {
        text += &format!("  no: {}\n", objection.reason);
        for clause in &objection.clauses {
            if let Some(place) = lines.nearest(&objection.host, clause) {
                text += &format!("      {place}: {clause}\n");
            }
        }
        if let Some(remedy) = objection.reason.remedy() {
            text += &format!("      help: {remedy}\n");
        }
    }
    text += &how(decision);
    let mut former = None;
    for ground in &decision.grounds {
        let Some(place) = lines.place(&ground.host, &ground.clause) else {
            continue;
        };
        if former.replace(&ground.host) != Some(&ground.host) {
            text += &format!("  {} says:\n", ground.host);
        }
        text += &format!("      {place}: {}\n", ground.clause);
    }
    text
}

fn how(decision: &Decision) -> String {
    let how = &decision.how;
    let mut text = String::new();
    if let Some(port) = how.port {
        let routes = how.routes.iter();
        let routes = routes.map(|route| format!(", from {} to {}", route.from, route.to));
        let routes: String = routes.collect();
        text += &format!("  at port {port}{routes}\n");
    }
    if let Some(request) = &how.client {
        text += &asked(request);
    }
    if let Some(offer) = &how.server {
        text += &served(offer, &decision.question);
    }
    if !how.protected_programs.is_empty() {
        let (client, programs) = (&decision.question.client, how.protected_programs.join(", "));
        text += &format!("  {client} protects those of: {programs}\n");
    }
    text
}

/// The file name of the program of `usher proxy`. The program's folder on a host is not known here.
const PROXY: &str = "usher";

fn asked(request: &Request) -> String {
    let permitted = match &request.programs {
        Programs::Listed(paths) => {
            let mut names = paths.iter().filter_map(|path| Path::new(path).file_name());
            names.any(|name| name == PROXY)
        }
        Programs::Asking | Programs::Any => true,
    };
    let addresses = request.proxy.iter();
    let proxy: String = if permitted {
        addresses.map(|at| format!(", the proxy at {at}")).collect()
    } else {
        addresses
            .map(|at| format!(", not the proxy at {at} (`{PROXY}` is not listed)"))
            .collect()
    };
    let imap = match request.protocol {
        Protocol::Imap if permitted && !proxy.is_empty() => ", which answers an IMAP LOGIN itself",
        _ => "",
    };
    let programs = match &request.programs {
        Programs::Asking => "by programs that use connect_by_user(3) or usher connect".to_owned(),
        Programs::Any => "by any program of the user".to_owned(),
        Programs::Listed(paths) => {
            format!("by these programs only: {}", joined(paths.iter(), ", "))
        }
    };
    let key = match &request.key {
        Some(key) => format!("the key for {key}"),
        None => "the unnamed key".to_owned(),
    };
    let protection = match request.protection {
        Some(Kind::Encryption) => {
            "  encrypted by IPsec, unless an `application` block says otherwise\n"
        }
        Some(Kind::Authentication) => {
            "  authenticated by IPsec, unless an `application` block says otherwise\n"
        }
        None => "",
    };
    format!(
        "  {programs}{proxy}{imap}\n{protection}  with a token in the SYN, or else announced; {key} opens \
         sessions\n"
    )
}

fn served(offer: &Offer, Question { user, server, .. }: &Question) -> String {
    let each = match offer.style {
        Style::Connection => "a process for each connection",
        Style::User => "one process for each user",
        Style::Shared => "one process for all users",
    };
    let by = match (&offer.program, &offer.account) {
        (Some(program), None) => program.join(" "),
        (Some(program), Some(account)) => {
            format!("{}, as the account {account}", program.join(" "))
        }
        (None, account) => {
            let account = account.as_deref().unwrap_or_default();
            match &offer.identify {
                Some(identify) => format!("a server of the account {account}: {identify}"),
                None => format!("processes of the account {account}, which become the user"),
            }
        }
    };
    let files = match &offer.files {
        Some(files) => {
            let files = files.iter();
            let files = files.map(|rule| format!("{} {}", rule.access, rule.path));
            format!(", with files: {}", joined(files, ", "))
        }
        None => String::new(),
    };
    let umask = match offer.umask {
        Some(umask) if umask != DEFAULT_UMASK => format!(", with umask {umask:03o}"),
        _ => String::new(),
    };
    let setuid = if offer.setuid {
        ", may run setuid programs"
    } else {
        ""
    };
    let pam = if offer.pam_session {
        ", inside a PAM session"
    } else {
        ""
    };
    let connect = match &offer.connect {
        Some(connect) if connect.entries.is_empty() => ", may connect nowhere".to_owned(),
        Some(connect) => format!(", may connect to: {connect}"),
        None => String::new(),
    };
    let keys = match &offer.keys {
        Some(keys) => format!("keys for {keys}"),
        None => "unnamed keys".to_owned(),
    };
    let again = match offer.reauthenticate_seconds {
        Some(seconds) => format!("authenticated again every {}", units(seconds)),
        None => "not authenticated again".to_owned(),
    };
    let protection = match offer.protection {
        Some(Kind::Encryption) => "must be encrypted by IPsec",
        Some(Kind::Authentication) => "must be authenticated by IPsec",
        None => "may pass without IPsec",
    };
    let whose = match offer.style {
        Style::Connection | Style::User => format!("as the account {user} of {server}, {each}"),
        Style::Shared => format!("{each}; it is told this user's name, {user}"),
    };
    format!(
        "  served by {by}{files}{umask}{setuid}{pam}{connect}\n  {whose}\n  admits \
         {keys}; sessions of at most {}, {again}\n  its connections {protection}\n",
        units(offer.session_seconds)
    )
}

/// A duration in the form of the policy language.
pub fn units(seconds: u64) -> Units {
    Units(Duration::from_secs(seconds))
}
