//! The labeller's answers to control requests.

use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_local::configuration::Configuration;
use usher_local::requests::{
    Mac, MacLoad, MacLook, MacRefusals, MacUnload, MacView, Prepare, PreparedView, RefusalsView,
    Reload, ReloadedView,
};
use usher_local::roles;

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

impl Answers<Mac> for Force {
    async fn answer(&self, _: Mac) -> Result<MacView, Failed> {
        Ok(self.view()?)
    }
}

impl Answers<MacLoad> for Force {
    async fn answer(&self, request: MacLoad) -> Result<MacView, Failed> {
        self.load(&request.module)?;
        Ok(self.view()?)
    }
}

impl Answers<MacUnload> for Force {
    async fn answer(&self, request: MacUnload) -> Result<MacView, Failed> {
        self.unload(&request.module)?;
        Ok(self.view()?)
    }
}

impl Answers<MacLook> for Force {
    async fn answer(&self, _: MacLook) -> Result<MacView, Failed> {
        self.look_again()?;
        Ok(self.view()?)
    }
}

impl Answers<MacRefusals> for Force {
    async fn answer(&self, _: MacRefusals) -> Result<RefusalsView, Failed> {
        Ok(self.refusals()?)
    }
}

impl Answers<Status> for Force {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let view = self.in_force()?;
        let refusals = view
            .modules
            .iter()
            .flat_map(|module| module.refusals.values());
        let numbers = [
            ("modules", view.modules.len() as u64),
            ("hooks", view.hooks.len() as u64),
            ("refusals", refusals.sum()),
            ("guarded", u64::from(view.is_guarded)),
        ];
        let mut status =
            StatusView::new::<roles::Labeller>(view.generation, numbers, view.troubles);
        status.troubles.extend(self.following.trouble());
        Ok(status)
    }
}
