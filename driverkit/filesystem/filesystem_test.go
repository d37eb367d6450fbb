package filesystem

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckFlags(t *testing.T) {
	cases := map[string]struct {
		reason string
		good   bool
		flags  []string
	}{
		"None":        {reason: "most volumes have none", good: true},
		"Generic":     {reason: "flags of all file systems", good: true, flags: []string{"ro", "rw", "noatime", "nosuid", "sync", "defaults"}},
		"Particular":  {reason: "flags of one", good: true, flags: []string{"data=ordered", "discard", "errors=remount-ro", "logbufs=8", "inode64", "stripe=16"}},
		"Label":       {reason: "labels of SELinux", good: true, flags: []string{"context=system_u:object_r:container_file_t:s0"}},
		"Kubelet":     {reason: "a kubelet sends labels in quotes, with commas", good: true, flags: []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`}},
		"Quoted":      {reason: "the kernel separates at each comma", flags: []string{`data="a,logdev=/dev/sda,b"`}},
		"Quotes":      {reason: "the first would end before the comma", flags: []string{`context="a",bind,b="c"`}},
		"Empty":       {reason: "it would be no flag", flags: []string{""}},
		"Option":      {reason: "it could be one of mount(8)", flags: []string{"--bind"}},
		"Comma":       {reason: "two flags in one", flags: []string{"noatime,bind"}},
		"Space":       {reason: "no flag has one", flags: []string{"noatime bind"}},
		"Newline":     {reason: "no flag has one", flags: []string{"noatime\n"}},
		"NUL":         {reason: "arguments end there", flags: []string{"noatime\x00"}},
		"Quote":       {reason: "it would hide the next comma", flags: []string{`a="b`}},
		"Backslash":   {reason: "it would hide the next comma", flags: []string{`noatime\`}},
		"NoLetter":    {reason: "it is not ASCII", flags: []string{"nöatime"}},
		"Bind":        {reason: "another operation", flags: []string{"bind"}},
		"Rbind":       {reason: "another operation", flags: []string{"rbind"}},
		"Move":        {reason: "another operation", flags: []string{"move"}},
		"Remount":     {reason: "another operation", flags: []string{"noatime", "remount"}},
		"Make":        {reason: "another operation", flags: []string{"make-rshared"}},
		"Shared":      {reason: "another operation", flags: []string{"rshared"}},
		"Loop":        {reason: "another device", flags: []string{"loop"}},
		"LoopDevice":  {reason: "another device", flags: []string{"loop=/dev/loop7"}},
		"Offset":      {reason: "another part of the device", flags: []string{"offset=4096"}},
		"SizeLimit":   {reason: "another part of the device", flags: []string{"sizelimit=4096"}},
		"Journal":     {reason: "another device", flags: []string{"journal_path=/dev/sda"}},
		"Log":         {reason: "another device", flags: []string{"logdev=/dev/sda"}},
		"Verity":      {reason: "another device", flags: []string{"verity.hashdevice=/dev/sda"}},
		"Helper":      {reason: "another program", flags: []string{"helper=sh"}},
		"UHelper":     {reason: "another program", flags: []string{"uhelper=sh"}},
		"User":        {reason: "for programs in user space", flags: []string{"x-systemd.automount"}},
		"UserMkdir":   {reason: "it would make directories", flags: []string{"X-mount.mkdir"}},
		"NoFail":      {reason: "nothing would be mounted, without an error", flags: []string{"nofail"}},
		"LastIsWrong": {reason: "all are looked at", flags: []string{"noatime", "nodev", "loop"}},
		"Secret":      {reason: "the value is not in the error", flags: []string{"password=hunter2 "}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := CheckFlags(c.flags)
			if (err == nil) != c.good {
				t.Fatalf("CheckFlags(%q) = %v, because %s", c.flags, err, c.reason)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v has the value of a flag", err)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("mount flag %d of %[1]d, ", len(c.flags))) {
				t.Errorf("%v does not say which flag", err)
			}
		})
	}
}

func TestMountFlags(t *testing.T) {
	xfs := kind{name: "xfs", flags: []string{"nouuid"}}
	cases := map[string]struct {
		reason  string
		options Options
		kind    kind
		want    []string
	}{
		"None":      {reason: "mount(8) is told what is wanted", want: []string{"rw"}},
		"OfType":    {reason: "the type has flags of its own", kind: xfs, want: []string{"nouuid", "rw"}},
		"InOrder":   {reason: "a later flag wins", options: Options{Flags: []string{"atime", "noatime"}}, want: []string{"atime", "noatime", "rw"}},
		"ReadOnly":  {reason: "by the field", options: Options{ReadOnly: true}, want: []string{"ro"}},
		"Flag":      {reason: "by the flag", options: Options{Flags: []string{"ro", "noatime"}}, want: []string{"noatime", "ro"}},
		"Contrary":  {reason: "rw does not undo the field", options: Options{ReadOnly: true, Flags: []string{"rw"}}, want: []string{"ro"}},
		"Contrary2": {reason: "nor the flag", options: Options{Flags: []string{"ro", "rw"}}, want: []string{"ro"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.options.mountFlags(c.kind)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
