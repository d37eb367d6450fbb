package secretref_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/secretref"
)

func tokens() (name, namespace map[string]string) {
	return map[string]string{"a": "1", "b": "${a}", "empty": "", "bad": "Not A Name"}, map[string]string{"a": "1"}
}

// TestResolve covers what may stand in templates.
func TestResolve(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// name and namespace are the templates; an empty one is "s".
		name, namespace string
		want, err       string
	}{
		"Plain":               {reason: "A text without tokens stays.", name: "x-y.z", want: "s/x-y.z"},
		"Token":               {reason: "A token is replaced.", name: "${a}", want: "s/1"},
		"Namespace":           {reason: "Also in the namespace.", namespace: "s${a}", want: "s1/s"},
		"Around":              {reason: "What stands around it stays.", name: "x${a}y${a}z", want: "s/x1y1z"},
		"EmptyValue":          {reason: "A value may be empty.", name: "x${empty}y", want: "s/xy"},
		"NoNesting":           {reason: "What comes out is not expanded again: a user could choose it.", name: "${b}", err: `name template "${b}" gives "${a}"`},
		"Unknown":             {reason: "An unknown token is named, with those that are known.", name: "x${c}", err: `template "x${c}": invalid tokens: ["c"]; known here are ["a" "b" "bad" "empty"]`},
		"OfTheName":           {reason: "A token of the name alone is none of the namespace.", namespace: "${empty}", err: `template "${empty}": invalid tokens: ["empty"]; known here are ["a"]`},
		"Case":                {reason: "Tokens are exact.", name: "${A}", err: `invalid tokens: ["A"]`},
		"Space":               {reason: "Tokens are exact.", name: "${ a}", err: `invalid tokens: [" a"]`},
		"Open":                {reason: "A token must be closed.", name: "${a", err: `invalid tokens: ["a"]`},
		"Dollar":              {reason: "A dollar sign alone is a typing error.", name: "$a", err: `name template "$a" gives "$a"`},
		"DollarEnd":           {reason: "Also at the end.", name: "x$", err: `gives "x$"`},
		"ResultIsNoName":      {reason: "What comes out must be a name that a secret can have.", name: "${bad}", err: `gives "Not A Name"`},
		"DotsInNamespace":     {reason: "A namespace is a label, without dots.", namespace: "a.b", err: `namespace template "a.b" gives "a.b"`},
		"BothAreReported":     {reason: "All that is wrong is said at once.", name: "A", namespace: "B", err: `gives "A"`},
		"BothAreReported (2)": {reason: "All that is wrong is said at once.", name: "A", namespace: "B", err: `gives "B"`},
	} {
		t.Run(name, func(t *testing.T) {
			template := secretref.Template{Name: "s", Namespace: "s"}
			if tc.name != "" {
				template.Name = tc.name
			}
			if tc.namespace != "" {
				template.Namespace = tc.namespace
			}
			got, err := template.Resolve(tokens())
			if tc.err != "" {
				if err == nil || got != nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s\ngot %v, error %v, want one with %q", tc.reason, got, err, tc.err)
				}
				return
			}
			namespace, name, _ := strings.Cut(tc.want, "/")
			if diff := cmp.Diff(&corev1.SecretReference{Namespace: namespace, Name: name}, got); diff != "" || err != nil {
				t.Errorf("%s\nerror %v, reference (-want +got):\n%s", tc.reason, err, diff)
			}
		})
	}
}

// FuzzResolve compares Resolve with the obvious: replace every known token in turn.
func FuzzResolve(f *testing.F) {
	f.Add("a-${pv.name}-b")
	f.Add("${pvc.namespace}${pv.name}")
	f.Add("$${pv.name}")
	f.Add("${${pv.name}}")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := secretref.Template{Name: text, Namespace: "s"}.Resolve(map[string]string{"pv.name": "1", "pvc.namespace": "2"}, nil)
		if err != nil {
			return
		}
		if want := strings.NewReplacer("${pv.name}", "1", "${pvc.namespace}", "2").Replace(text); got.Name != want || strings.ContainsAny(want, "${}") {
			t.Errorf("%q gives %q, want %q", text, got.Name, want)
		}
	})
}
