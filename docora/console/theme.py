"""How the admin looks: its name, colours and menu. Everything that it loads comes from this server."""

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy


def _page(title: str, icon: str, model: str) -> dict[str, Any]:
    app, _, name = model.partition(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{name}_changelist"),
        "permission": lambda request: request.user.has_perm(f"{app}.view_{name}"),
    }


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Docora",
    "SITE_HEADER": "Docora",
    "SITE_SUBHEADER": "Git changes, delivered",
    "SITE_SYMBOL": "hub",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("docora/icon.svg")}],
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "8px",
    "STYLES": [lambda request: static("docora/console.css")],
    "SCRIPTS": [lambda request: static("docora/console.js")],
    "COLORS": {
        "primary": {
            "50": "oklch(97.1% .014 236)",
            "100": "oklch(94% .029 236)",
            "200": "oklch(88.4% .06 236)",
            "300": "oklch(80.5% .1 236)",
            "400": "oklch(70.5% .135 240)",
            "500": "oklch(61.5% .15 244)",
            "600": "oklch(53% .15 247)",
            "700": "oklch(46.5% .135 249)",
            "800": "oklch(40.5% .11 250)",
            "900": "oklch(35.5% .09 251)",
            "950": "oklch(26.5% .07 253)",
        }
    },
    "SIDEBAR": {
        "navigation": [
            {
                "items": [
                    {"title": "Overview", "icon": "monitoring", "link": reverse_lazy("admin:index")},
                    _page("Apps", "apps", "repositories.app"),
                    _page("Repositories", "source", "repositories.repository"),
                    _page("Watches", "visibility", "repositories.watch"),
                    _page("Hooks", "webhook", "repositories.hook"),
                    _page("GitHub grants", "key", "repositories.githubgrant"),
                ]
            },
            {
                "title": "What happened",
                "separator": True,
                "items": [
                    _page("Snapshots", "photo_camera", "snapshots.snapshot"),
                    _page("Deliveries", "send", "snapshots.delivery"),
                    _page("Parked files", "pause_circle", "snapshots.parked"),
                    _page("Log of actions", "history", "admin.logentry"),
                ],
            },
            {
                "title": "The machine",
                "separator": True,
                "items": [
                    {
                        "title": "Queue",
                        "icon": "queue",
                        "link": reverse_lazy("admin:django_rq_dashboard_changelist"),
                    },
                    _page("Users", "person", "auth.user"),
                    _page("Roles", "group", "auth.group"),
                ],
            },
        ]
    },
}
