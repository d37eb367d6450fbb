package devcluster

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDriverFlagsBelongToTheDriverBefore: which flag is whose is seen by their order.
func TestDriverFlagsBelongToTheDriverBefore(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		want   []Driver
		err    string
	}{
		"None":      {reason: "the reference driver needs no flag"},
		"Reference": {reason: "an empty path is the reference driver", args: []string{"--driver="}, want: []Driver{{}}},
		"Beside":    {reason: "the reference driver can run beside another", args: []string{"--driver=", "--driver=/a"}, want: []Driver{{}, {Path: "/a"}}},
		"Each": {
			reason: "flags follow their driver, in any order", args: []string{"--driver=/a", "--driver=/b", "--storageclass=/s", "--driver-flags=-x -y", "--driver=/c", "--csidriver=/o"},
			want: []Driver{{Path: "/a"}, {Path: "/b", Flags: "-x -y", StorageClass: "/s"}, {Path: "/c", CSIDriver: "/o"}},
		},
		"FlagsFirst":  {reason: "whose flags?", args: []string{"--driver-flags=-x", "--driver=/a"}, err: "flag -driver-flags: must come after the --driver that it belongs to"},
		"ObjectAlone": {reason: "the reference driver has its object", args: []string{"--csidriver=/o"}, err: "flag -csidriver: must come after the --driver that it belongs to"},
		"ClassTwice":  {reason: "which of them?", args: []string{"--driver=/a", "--storageclass=/s", "--storageclass=/t"}, err: "flag -storageclass: must be given at most once after each --driver"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var o Options
			fs := flag.NewFlagSet("", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			o.AddFlags(fs)
			err := fs.Parse(tc.args)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: got %v, want %q", tc.reason, err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, o.Drivers); diff != "" || err != nil {
				t.Errorf("%s: %v\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestDriversThatDoNotFit(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program, noProgram, pod := file("driver", "", 0o700), file("text", "", 0o600), file("pod.yaml", "kind: Pod\n", 0o600)
	tests := map[string]struct {
		reason string
		driver Driver
		want   string
	}{
		"Reference":      {"it is built in", Driver{}, ""},
		"Program":        {"any program may be a driver", Driver{Path: program, Flags: "--no-endpoint"}, ""},
		"NoProgram":      {"a file that cannot be run", Driver{Path: noProgram}, "--driver=" + noProgram + ": not a program"},
		"ReferenceFlags": {"the reference driver has its flags", Driver{Flags: "-x"}, "must come after a --driver with a program"},
		"ReferenceClass": {"its classes are the user's to make", Driver{StorageClass: pod}, "must come after a --driver with a program"},
		"WrongObject":    {"a mistake is found before anything starts", Driver{Path: program, CSIDriver: pod}, "--csidriver: " + pod + ": must have objects of storage.k8s.io/v1 CSIDriver"},
		"WrongClass":     {"a mistake is found before anything starts", Driver{Path: program, StorageClass: pod}, "--storageclass: " + pod + ": must have objects of storage.k8s.io/v1 StorageClass"},
		"NoClass":        {"a file that is not there", Driver{Path: program, StorageClass: filepath.Join(dir, "absent")}, "--storageclass: open"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := validOptions(t)
			o.Drivers = []Driver{{}, tc.driver}
			err := o.check()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
