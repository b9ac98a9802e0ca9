"""The measures of tools/measures.py."""

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def measures():
    spec = importlib.util.spec_from_file_location("measures", ROOT / "tools" / "measures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["measures"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["measures"]


def counted(measures, text, name="a.h"):
    """Returns kind -> the measured items, in the order in which they end: (name, value)."""
    found: dict[str, list] = {}
    source = measures.Source(name, textwrap.dedent(text))
    for m in source.read():
        found.setdefault(m.kind.split()[0], []).append((m.name, m.value))
    return found


FIELDS = {
    "int a, b = 1;": 2,
    "std::map<int, std::pair<int, int>> table;": 1,
    "std::function<void(const Status&, int)> done;": 1,
    "uint64_t bytes = 1u << 20, most = f(1, 2);": 2,
    "std::array<int, 2> pair{1, 2};": 1,
    "Nanos (*when)(const Core&, int);": 1,
    "struct { int x; int y; } here, there;": 2,
    "struct Part { int x; };": 0,
    "struct Part;": 0,
    "enum class Way { kOne, kTwo };": 0,
    "enum Way { kOne } way = kOne;": 1,
    "alignas(64) std::atomic<uint32_t> word{0};": 1,
    "static constexpr int kMost = 5;": 0,
    "using Map = std::map<int, int>;": 0,
    "friend class Other;": 0,
    "// int gone;": 0,
    'const char* text = "int a; {";': 1,
    "int number() const { return n(1, 2); }": 0,
    "bool operator==(const A&) const = default;": 0,
    "explicit A(int x) : x_(x), y_{x} {}": 0,
}


def test_fields(measures):
    for text, count in FIELDS.items():
        assert counted(measures, f"struct A {{\n  {text}\n}};\n")["fields"][-1] == ("A", count), (
            text
        )


def test_private_methods(measures):
    found = counted(
        measures,
        """\
        class A final : public B<int> {
          void hidden();
         public:
          A(int x);
          void shown() const;
         private:
          A(const A&) = delete;
          template <typename T, size_t N>
          bool take(T x, std::function<void()> f = {}) const noexcept;
          int here() override {
            return 1;
          }
          std::function<int(int)> field_;
        };
        """,
    )
    assert found["private"] == [("A", 3)]
    assert found["fields"] == [("A", 1)]


def test_lines_of_functions(measures):
    found = counted(
        measures,
        """\
        namespace x {
        constexpr int kTable[] = {
            1, 2};
        template <typename T>
        T Outer<T>::make(
            size_t most = std::numeric_limits<size_t>::max()) {
          const auto f = [&](int x) { return x < 1'000; };
          struct Local { int a; };
          for (int i = 0; i < 3; i++) {
          }
          return {};
        }
        Outer::Outer(int x)
            : x_(x),
              list_{1, 2} {}
        }  // namespace x
        TEST(Suite, Name) {
          const char* text = R"(void f() {)";
        }
        """,
    )
    assert found["lines"] == [
        ("Outer<T>::make".replace("<T>", ""), 9),
        ("Outer::Outer", 3),
        ("TEST(Suite, Name)", 3),
    ]


def test_classes_of_tests_may_have_many_fields(measures):
    assert counted(measures, "struct A {\n  int a;\n};\n", "tests/cpp/a.h") == {}


def test_functions_beyond_the_limit_are_reported(measures, tmp_path, monkeypatch, capsys):
    long = tmp_path / "long.py"
    long.write_text("def f():\n" + "    pass\n" * 60 + "\n\ndef g():\n    pass\n")
    monkeypatch.setattr(sys, "argv", ["measures.py", str(long)])
    assert measures.main() == 1
    assert f"   61  {long}:1 f\n" in capsys.readouterr().out
    long.write_text("def f():\n" + "    pass\n" * 59)
    assert measures.main() == 0


def test_a_function_that_is_not_recognized_is_an_error(measures, tmp_path, monkeypatch, capsys):
    """If the tool could not follow the braces of a file, it would miss functions, and their lengths."""
    lost = tmp_path / "lost.cpp"
    lost.write_text("namespace x {\nint f() {\n}\n}  // namespace x\nint g(){\n}\n")
    monkeypatch.setattr(sys, "argv", ["measures.py", str(lost)])
    assert measures.main() == 1
    assert f"{lost}:6: what ends here was not measured\n" in capsys.readouterr().out
    lost.write_text(lost.read_text().replace("g(){", "g() {"))
    assert measures.main() == 0
