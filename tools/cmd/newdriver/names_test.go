package main

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	cases := map[string]struct {
		reason         string
		driver, module string
		want           names
		version        string
	}{
		"Simple": {
			reason: "the name and the module of the documentation", driver: "foo.example.com", module: "example.com/foo",
			want: names{Package: "foo", Binary: "foo", Objects: "csi-foo"}, version: "v0.0.0",
		},
		"Dashes": {
			reason: "no Go identifier has dashes or dots", driver: "csi.example.com", module: "example.com/My-CSI.driver",
			want: names{Package: "mycsidriver", Binary: "my-csi-driver", Objects: "my-csi-driver"}, version: "v0.0.0",
		},
		"Version": {
			reason: "the major version is no name", driver: "foo.example.com", module: "example.com/foo/v2",
			want: names{Package: "foo", Binary: "foo", Objects: "csi-foo"}, version: "v2.0.0",
		},
		"Digit": {
			reason: "no Go identifier begins with a digit", driver: "9p.example.com", module: "example.com/9p",
			want: names{Package: "driver9p", Binary: "9p", Objects: "csi-9p"}, version: "v0.0.0",
		},
		"Keyword": {
			reason: "no package is called as a keyword of Go", driver: "go.example.com", module: "example.com/go",
			want: names{Package: "godriver", Binary: "go", Objects: "csi-go"}, version: "v0.0.0",
		},
		"Predeclared": {
			reason: "files that import the package would lose what the name stands for", driver: "new.example.com", module: "example.com/new",
			want: names{Package: "newdriver", Binary: "new", Objects: "csi-new"}, version: "v0.0.0",
		},
		"Main": {
			reason: "a package called main is a program", driver: "main.example.com", module: "example.com/main",
			want: names{Package: "maindriver", Binary: "main", Objects: "csi-main"}, version: "v0.0.0",
		},
		"Nothing": {
			reason: "a path may have no letter in its last element", driver: "foo.example.com", module: "example.com/_",
			want: names{Package: "driver", Binary: "driver", Objects: "csi-driver"}, version: "v0.0.0",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := newNames(tc.driver, tc.module)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			tc.want.Driver, tc.want.Module = tc.driver, tc.module
			if got != tc.want {
				t.Errorf("%s: got %+v, want %+v", tc.reason, got, tc.want)
			}
			if got.version() != tc.version {
				t.Errorf("%s: version %s, want %s", tc.reason, got.version(), tc.version)
			}
		})
	}
}

func TestNamesRefused(t *testing.T) {
	cases := map[string]struct {
		reason         string
		driver, module string
		want           []string
	}{
		"Nothing":     {reason: "everything that is wrong is told at once", want: []string{"NAME is missing", "MODULE is missing"}},
		"UpperCase":   {reason: "Kubernetes names objects in lower case", driver: "Foo.example.com", module: "example.com/foo", want: []string{"NAME=Foo.example.com", "lower case"}},
		"OneLabel":    {reason: "a driver's name is the vendor's domain", driver: "foo", module: "example.com/foo", want: []string{"NAME=foo:"}},
		"Underscore":  {reason: "no domain has one", driver: "foo_bar.example.com", module: "example.com/foo", want: []string{"NAME=foo_bar"}},
		"Long":        {reason: "CSI allows 63 characters", driver: strings.Repeat("a", 60) + ".com", module: "example.com/foo", want: []string{"at most 63"}},
		"Dot":         {reason: "no part may be empty", driver: "foo..com", module: "example.com/foo", want: []string{"NAME=foo..com"}},
		"Newline":     {reason: "an argument is one line", driver: "foo.example.com\n", module: "example.com/foo", want: []string{"NAME="}},
		"Same":        {reason: "two drivers of a name cannot be told apart", driver: driverName, module: "example.com/foo", want: []string{"is copied"}},
		"Path":        {reason: "a module has a host's name", driver: "foo.example.com", module: "foo", want: []string{"MODULE=foo:", "dot"}},
		"BadPath":     {reason: "Go's rule", driver: "foo.example.com", module: "example.com/../foo", want: []string{"MODULE=example.com/../foo"}},
		"Inside":      {reason: "what is inside is no copy", driver: "foo.example.com", module: project + "/foo", want: []string{"inside of the module"}},
		"LongElement": {reason: "names of objects are made of it", driver: "foo.example.com", module: "example.com/" + strings.Repeat("a", 50), want: []string{"MODULE=", "longer than"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := newNames(tc.driver, tc.module)
			if err == nil {
				t.Fatalf("%s: got %+v and no error", tc.reason, got)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got the error %q, want %q in it", tc.reason, err, want)
				}
			}
		})
	}
}

func TestLeftover(t *testing.T) {
	cases := map[string]struct {
		reason string
		names  names
		line   string
		want   string
	}{
		"None":    {reason: "nothing is left", line: "foo.example.com"},
		"Any":     {reason: "in any case", line: "the HostPath driver", want: "HostPath"},
		"Project": {reason: "the other name", line: "github.com/longshore-csi/x", want: "longshore"},
		"Field":   {reason: "a field of Kubernetes", line: "  hostPath: {path: /dev}"},
		"Both":    {reason: "the field hides nothing", line: "  hostPath: {path: /var/lib/hostpath}", want: "hostpath"},
		"Sidecar": {reason: "there are no others", line: "    image: longshore/csi-attacher:v0.1.0"},
		"New":     {reason: "the vendor may call it so", names: names{Driver: "hostpath.example.com", Module: "example.com/myhostpath", Package: "myhostpath", Binary: "myhostpath", Objects: "csi-myhostpath"}, line: `"example.com/myhostpath/x" hostpath.example.com myhostpath`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.names.Module == "" {
				tc.names = names{Driver: "foo.example.com", Module: "example.com/foo", Package: "foo", Binary: "foo", Objects: "csi-foo"}
			}
			if got := tc.names.leftover(tc.line); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
