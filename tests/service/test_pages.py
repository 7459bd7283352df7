"""The files of the console over HTTP: types, headers, and no way to any other file."""

import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import pytest
from kvbraid import console
from kvbraid.service.http.pages import CONTENT_SECURITY_POLICY, FILES
from kvbraid.service.http.routes import ROUTES

from tests.console.vendor import VENDOR, listed
from tests.service.in_process import TestClient
from tests.service.serving import running

MOST_BYTES = 120_000
TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@pytest.mark.parametrize("path", FILES)
def test_each_file_has_its_type_and_headers_that_let_nothing_else_run(
    client: TestClient, path: str
) -> None:
    answer = client.get(path)
    expected = TYPES.get(path.rpartition(".")[2], "text/html; charset=utf-8")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == expected
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == FILES[path].body


def test_the_policy_is_that_of_the_page_alone() -> None:
    assert "default-src 'self'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_a_browser_that_has_a_file_gets_no_second_copy(client: TestClient) -> None:
    first = client.get("/console/main.js")
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}'):
        again = client.get("/console/main.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    other = client.get("/console/main.js", headers={"if-none-match": '"x"'})
    assert other.status_code == 200


def test_over_a_connection_that_is_kept_a_304_has_no_body() -> None:
    with running() as server:
        connection = server.connect()
        for status in (200, 304, 200):
            tag = FILES["/"].etag.decode() if status == 304 else ""
            connection.request("GET", "/", headers={"if-none-match": tag})
            answer = connection.getresponse()
            assert answer.status == status
            assert answer.read() == (FILES["/"].body if status == 200 else b"")


@pytest.mark.parametrize(
    "path",
    ["__init__.py", "vendor/vendor.toml", "../errors.py", "%2e%2e/errors.py", "..%2ferrors.py",
     "vendor/../__init__.py", "main.js/", "//main.js", "main.js%00", "\\..\\errors.py"],
)  # fmt: skip
def test_no_path_leads_to_another_file(path: str) -> None:
    with running() as server:
        connection = server.connect()
        connection.request("GET", f"/console/{quote(path, safe='/%.')}")
        assert connection.getresponse().status == 404


def test_every_file_of_the_folder_is_served_or_on_the_list_of_those_that_are_not() -> None:
    folder = Path(console.__file__).parent
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    licences = {f"vendor/{name}/LICENSE" for name in listed()}
    others = {console.INDEX, "__init__.py", "vendor/vendor.toml", *licences}
    compiled = {name for name in there if "__pycache__" in name}
    assert there - compiled - others == set(console.FILES)
    assert {f"/{page}.json" for page in console.PAGES} <= {route.path for route in ROUTES}


def test_all_of_it_is_small() -> None:
    assert sum(len(console.read(name)) for name in (console.INDEX, *console.FILES)) < MOST_BYTES


def test_vendored_files_are_those_of_the_list() -> None:
    for name, library in listed().items():
        assert library["licence"] in {"BSD-3-Clause", "MIT"}
        found = {
            file: sha256((VENDOR / name / file).read_bytes()).hexdigest()
            for file in library["sha256"]
        }
        assert found == library["sha256"], "make vendor fetches them again"


def test_nothing_names_another_origin_or_reads_text_as_html() -> None:
    for name in (console.INDEX, *console.FILES):
        if name.startswith("vendor/"):
            continue
        text = console.read(name).decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|unsafeHTML|insertAdjacentHTML|\beval\b|style=", text), (
            name
        )
