package main

import (
	"strings"
	"testing"
)

func TestSource(t *testing.T) {
	const head = "// Package x is of hostpathdriver.\npackage x\n\n"
	cases := map[string]struct {
		reason      string
		module      string
		source      string
		want        string
		wantPackage string
	}{
		"Identifiers": {
			reason: "the package is called by its new name",
			source: "import \"github.com/longshore-csi/longshore/hostpathdriver\"\n\nvar o hostpathdriver.Options\n",
			want:   "import \"example.com/foo\"\n\nvar o foo.Options\n",
		},
		"Named": {
			reason: "the path does not tell the name", module: "example.com/foo-csi",
			source: "import \"github.com/longshore-csi/longshore/hostpathdriver\"\n\nvar o hostpathdriver.Options\n",
			want:   "import foocsi \"example.com/foo-csi\"\n\nvar o foocsi.Options\n", wantPackage: "foocsi",
		},
		"NamedAlready": {
			reason: "somebody has chosen another name", module: "example.com/foo-csi",
			source: "import h \"github.com/longshore-csi/longshore/hostpathdriver\"\n\nvar o h.Options\n",
			want:   "import h \"example.com/foo-csi\"\n\nvar o h.Options\n", wantPackage: "foocsi",
		},
		"Sorted": {
			reason: "gofmt sorts imports",
			source: "import (\n\t\"github.com/longshore-csi/longshore/csikit/logging\"\n\t\"github.com/longshore-csi/longshore/hostpathdriver/internal/backend\"\n)\n",
			want:   "import (\n\t\"example.com/foo/internal/backend\"\n\t\"example.com/foo/internal/csikit/logging\"\n)\n",
		},
		"Strings": {
			reason: "names in strings, raw ones too, and in comments",
			source: "const (\n\ta = \"hostpath.csi.k8s.io\" // the hostpath driver\n\tb = `topology.hostpath.csi/node`\n\tc = \"HOSTPATHDRIVER_TEST\"\n)\n",
			want:   "const (\n\ta = \"foo.example.com\" // the foo driver\n\tb = `topology.foo.example.com/node`\n\tc = \"FOO_TEST\"\n)\n",
		},
		"Other": {
			reason: "the driver of the same name of others is not renamed",
			source: "// Every flag of the Kubernetes project's hostpath driver.\nconst hostPath = 1\n",
			want:   "// Every flag of the Kubernetes project's reference driver.\nconst hostPath = 1\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.module == "" {
				tc.module, tc.wantPackage = "example.com/foo", "foo"
			}
			n, err := newNames("foo.example.com", tc.module)
			if err != nil {
				t.Fatal(err)
			}
			got, err := newRenamer(n).source([]byte(head + tc.source))
			if err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(head, driverDir, tc.wantPackage) + tc.want
			if string(got) != want {
				t.Errorf("%s: got\n%s\nwant\n%s", tc.reason, got, want)
			}
		})
	}
}

func TestSourceThatIsNone(t *testing.T) {
	n, err := newNames("foo.example.com", "example.com/foo")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"package", "package x\nvar s = \"open", "no Go"} {
		if got, err := newRenamer(n).source([]byte(source)); err == nil {
			t.Errorf("%q: got %q and no error", source, got)
		}
	}
}

func TestFileNames(t *testing.T) {
	n, err := newNames("foo.example.com", "example.com/foo-csi")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cmd/hostpathplugin/main.go":    "cmd/foo-csi/main.go",
		"deploy/base/hostpathdriver/a":  "deploy/base/foocsi/a",
		"internal/volume/quantity.txt":  "internal/volume/quantity.txt",
		"testdata/hostpath.csi.k8s.io/": "testdata/foo.example.com/",
	} {
		data := ""
		if strings.HasSuffix(name, ".go") {
			data = "package main\n"
		}
		if got, _, err := newRenamer(n).file(name, []byte(data)); err != nil || got != want {
			t.Errorf("%s becomes %s (%v), want %s", name, got, err, want)
		}
	}
}
