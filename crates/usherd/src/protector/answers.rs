//! The protector's answers to control requests.

use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_local::configuration::Configuration;
use usher_local::requests::{
    Peers, Prepare, PreparedView, Protection, ProtectionView, Reload, ReloadedView, Sockets,
    SocketsView,
};
use usher_local::roles;
use usher_policy::protection::Report;

use super::force::Force;

impl Answers<Prepare> for Force {
    async fn answer(&self, request: Prepare) -> Result<PreparedView, Failed> {
        self.check(&Configuration::candidate(request.into_candidate()).await?)?;
        Ok(PreparedView {})
    }
}

impl Answers<Reload> for Force {
    async fn answer(&self, _: Reload) -> Result<ReloadedView, Failed> {
        let generation = self.put_in_force(Configuration::load()?)?;
        Ok(ReloadedView {
            generation,
            ..ReloadedView::default()
        })
    }
}

impl Answers<Protection> for Force {
    async fn answer(&self, _: Protection) -> Result<ProtectionView, Failed> {
        Ok(self.view()?)
    }
}

impl Answers<Sockets> for Force {
    async fn answer(&self, asked: Sockets) -> Result<SocketsView, Failed> {
        Ok(self.sockets(asked.after, asked.most).await?)
    }
}

impl Answers<Peers> for Force {
    async fn answer(&self, _: Peers) -> Result<Report, Failed> {
        Ok(self.peers())
    }
}

impl Answers<Status> for Force {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let view = self.view()?;
        let report = self.ike.report();
        let classes = report.peers.iter().flat_map(|peer| &peer.classes);
        let protected = classes.clone().filter(|class| class.protected).count();
        let numbers = [
            ("applications", view.applications.len()),
            ("names", view.names.len()),
            ("spd_entries", view.spd_entries),
            (
                "adopted_sockets",
                usize::try_from(view.adopted_sockets).unwrap_or(usize::MAX),
            ),
            ("peers", report.peers.len()),
            ("sas_wanted", classes.count()),
            ("sas", protected),
            ("guarded", usize::from(self.state.lock().is_guarded)),
        ];
        let numbers = numbers.map(|(name, number)| (name, number as u64));
        let mut status =
            StatusView::new::<roles::Protector>(view.generation, numbers, view.troubles);
        status.numbers.extend(view.counters);
        status.troubles.extend(self.following.trouble());
        Ok(status)
    }
}
