package commandtest

import "testing"

func TestParse(t *testing.T) {
	o, err := Parse(newOptions, "-workers", "3", "--v=5", "--logging-format=json", "--driver=")
	if err != nil || o.workers != 3 || o.driver != "" {
		t.Errorf("got %+v, %v, want what was given, not validated", o, err)
	}
	if _, err := Parse(newOptions, "--no-such-flag"); err == nil {
		t.Error("a flag that does not exist was accepted")
	}
}

func TestAccepts(t *testing.T) {
	if o := Accepts(t, newOptions, "--workers=7"); o.workers != 7 {
		t.Errorf("got %+v", o)
	}
	for reason, tc := range map[string]struct{ arg, want string }{
		"it cannot be parsed": {arg: "--workers=many", want: `parse ["--workers=many"]`},
		"it is not valid":     {arg: "--workers=0", want: "must be at least 1"},
	} {
		wantFailures(t, reason, failuresOf(t, func(t testing.TB) { Accepts(t, newOptions, tc.arg) }), tc.want)
	}
}

func TestDefaults(t *testing.T) {
	cases := map[string]struct {
		reason string
		flags  map[string]string
		want   []string
	}{
		"Good":    {reason: "own flags and those of every binary", flags: map[string]string{"workers": "10", "v": "0", "version": "false", "automaxprocs": ""}},
		"Value":   {reason: "another default", flags: map[string]string{"workers": "9"}, want: []string{`--workers defaults to "10", want "9"`}},
		"Unknown": {reason: "a flag that is gone", flags: map[string]string{"worker": "10", "driver": "d"}, want: []string{"--worker is unknown"}},
		"Both":    {reason: "all differences are reported", flags: map[string]string{"worker": "10", "driver": ""}, want: []string{"--worker is unknown", "--driver defaults"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantFailures(t, tc.reason, failuresOf(t, func(t testing.TB) { Defaults(t, newOptions, tc.flags) }), tc.want...)
		})
	}
}

func TestValidate(t *testing.T) {
	Validate(t, newOptions, map[string]Case{
		"Defaults": {Reason: "they are good"},
		"Bad":      {Reason: "all is named", Args: []string{"--workers=0", "--driver="}, Errors: []string{"--workers=0: must be at least 1", "--driver"}},
		"Usage":    {Reason: "no number", Args: []string{"--workers=many"}, Usage: []string{`"many"`, "workers"}},
		"Warnings": {Reason: "in order", Args: []string{"--threads=1", "--automaxprocs"}, Warnings: []string{"--automaxprocs", "--threads"}},
		"BadAndWarned": {
			Reason: "both are reported", Args: []string{"--workers=0", "--threads=1"},
			Errors: []string{"--workers"}, Warnings: []string{"--threads"},
		},
	})
	Validate(t, func() silent { return silent{} }, map[string]Case{
		"NoWarner": {Reason: "options need not warn", Args: []string{"--n=1"}},
	})
}

func TestValidateFails(t *testing.T) {
	cases := map[string]struct {
		reason string
		c      Case
		want   []string
	}{
		"Refused":        {reason: "it should be good", c: Case{Args: []string{"--workers=0"}}, want: []string{"want one: false"}},
		"Accepted":       {reason: "it should be bad", c: Case{Errors: []string{"--workers"}}, want: []string{"want one: true"}},
		"Parsed":         {reason: "it should not be parsed", c: Case{Usage: []string{"--workers"}}, want: []string{"parse []"}},
		"NotParsed":      {reason: "it should be parsed", c: Case{Args: []string{"--x"}}, want: []string{"parse [\"--x\"]"}},
		"OtherError":     {reason: "other words", c: Case{Args: []string{"--workers=0"}, Errors: []string{"--workers=0", "--driver"}}, want: []string{`does not say "--driver"`}},
		"OtherUsage":     {reason: "other words", c: Case{Args: []string{"--x"}, Usage: []string{"--y"}}, want: []string{`does not say "--y"`}},
		"NeverValidated": {reason: "a case that hides what it does not test", c: Case{Args: []string{"--x"}, Usage: []string{"-x"}, Errors: []string{"--workers"}}, want: []string{"never validated"}},
		"NoWarning":      {reason: "it should warn", c: Case{Warnings: []string{"--threads"}}, want: []string{"want 1 warnings"}},
		"Warning":        {reason: "it should not warn", c: Case{Args: []string{"--threads=1"}}, want: []string{"want 0 warnings"}},
		"OtherWarning":   {reason: "other words", c: Case{Args: []string{"--threads=1"}, Warnings: []string{"--automaxprocs"}}, want: []string{`about "--automaxprocs"`}},
		"OtherOrder": {
			reason: "warnings have an order", c: Case{Args: []string{"--threads=1", "--automaxprocs"}, Warnings: []string{"--threads", "--automaxprocs"}},
			want: []string{`about "--threads"`, `about "--automaxprocs"`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := failuresOf(t, func(t testing.TB) { check(t, newOptions, tc.c) })
			wantFailures(t, tc.reason, got, tc.want...)
		})
	}
}
