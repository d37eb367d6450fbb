package command

import "testing"

func TestProfiled(t *testing.T) {
	for arg, want := range map[string]bool{
		"--enable-pprof": true, "-enable-pprof": true, "--enable-pprof=true": true, "--http-endpoint=:80": false, "--name=enable-pprof": false,
	} {
		if got := profiled([]string{"--v=2", arg}); got != want {
			t.Errorf("%s: got %t", arg, got)
		}
	}
	if profiled(nil) {
		t.Error("profiled without arguments")
	}
}
