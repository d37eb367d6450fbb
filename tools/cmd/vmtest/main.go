// Command vmtest runs tests as root in a virtual machine, for those that need what the kernel of this one may lack, such as quotas.
// It prints the events of `go test -json`; a test sees VMTEST=1 in its environment, and its own testdata.
//
//	cd hostpathdriver && vmtest -run '^TestOnQuotas$' ./internal/quota | testsum
//
// The kernel is that of a Debian package, downloaded by apt-get, not installed, and kept in ${XDG_CACHE_HOME:-$HOME/.cache}/longshore.
// Everything else in the machine is this program, the tests, and the file system tools of this machine with their libraries. It has no
// disk, and no network but its own, and runs where there is no /dev/kvm, too.
//
// Where there is no qemu, or no such package, every package of tests counts as one test that was skipped.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	if os.Getpid() == 1 {
		beInit()
		return
	}
	options := options{out: os.Stdout, log: os.Stderr}
	flag.StringVar(&options.run, "run", ".", "regular expression of the tests to run")
	flag.BoolVar(&options.short, "short", false, "leave out what takes long, as the flag of go test")
	flag.StringVar(&options.kernel, "kernel", "linux-image-cloud-amd64", "Debian package of the kernel, or one that depends on it")
	flag.StringVar(&options.memory, "memory", "2G", "memory of the machine, which is its disk, too")
	flag.DurationVar(&options.timeout, "timeout", 10*time.Minute, "time that the machine may take")
	flag.Parse()
	options.packages = flag.Args()
	ok, err := runTests(context.Background(), options)
	if err != nil {
		fmt.Fprintf(os.Stderr, "vmtest: %v\n", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}
