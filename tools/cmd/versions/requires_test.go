package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestRequirements(t *testing.T) {
	const old, recent = "module m\n\nrequire example.com/lib v1.9.0\n", "module m\n\nrequire example.com/lib v1.10.0 // indirect\n"
	tests := map[string]struct {
		reason  string
		modules map[string]string
		want    string
	}{
		"Same":    {reason: "one version for all", modules: map[string]string{"a": recent, "b": recent, "c": "module m\n"}},
		"Several": {reason: "a module is not what is tested with the others", modules: map[string]string{"a": recent, "b": old}, want: "example.com/lib is v1.10.0 in a; v1.9.0 in b: give"},
		"Tools":   {reason: "linters have dependencies of their own", modules: map[string]string{"a": recent, "tools": old}},
		"Broken":  {reason: "what cannot be read is named", modules: map[string]string{"a": "modul m\n"}, want: "a/go.mod:1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fs, dirs := fstest.MapFS{}, []string{}
			for dir, text := range tc.modules {
				fs[dir+"/go.mod"] = &fstest.MapFile{Data: []byte(text)}
				dirs = append(dirs, dir)
			}
			err := checkRequirements(fs, dirs)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
