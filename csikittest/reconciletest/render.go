package reconciletest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/redact"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

const maskedTime = "<time>"

func (e *entry) isEvent() bool { return e.write != nil && e.write.Resource == "events" }

// printEvent prints an event as a user reads it.
func printEvent(w *kubetest.Write) (head string, body []string) {
	event, ok := w.Object.(*corev1.Event)
	if !ok {
		return printWrite(w)
	}
	ref := event.InvolvedObject
	head = fmt.Sprintf("event %s %s on %s %s by %s: %s", event.Type, event.Reason, ref.Kind,
		nameOf(ref.Namespace, ref.Name), event.Source.Component, event.Message)
	if event.Count > 1 {
		head += fmt.Sprintf(" (x%d)", event.Count)
	}
	return head, nil
}

// printWrite prints a request and its changes.
func printWrite(w *kubetest.Write) (head string, body []string) {
	resource := w.Resource
	if w.Subresource != "" {
		resource += "/" + w.Subresource
	}
	head = fmt.Sprintf("api %s %s %s", w.Verb, resource, nameOf(w.Namespace, w.Name))
	switch {
	case w.Err != nil:
		return head + " -> " + apiError(w.Err), nil
	case w.Unchanged:
		return head + " (no change)", nil
	case w.Verb == "create":
		return head, strings.Split(toYAML(document(w.Object)), "\n")
	case w.Gone && w.Verb == "delete":
		return head + " (gone)", nil
	case w.Gone:
		head += " (gone)"
	}
	return head, diff(document(w.Before), document(w.Object))
}

// apiError prints the reason of an API error, which is stable, or the text of another.
func apiError(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return err.Error()
}

func nameOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// requestText prints a CSI request as YAML, without secrets.
func requestText(request proto.Message) string {
	if request == nil {
		return ""
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(redact.Message(request).String()), &fields); err != nil {
		return redact.Message(request).String()
	}
	if len(fields) == 0 {
		return ""
	}
	return toYAML(fields)
}

// document returns an object as plain data, without the fields that differ between runs.
func document(obj kube.Object) map[string]any {
	if obj == nil {
		return nil
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return map[string]any{"error": err.Error()}
	}
	if meta, ok := doc["metadata"].(map[string]any); ok {
		for _, key := range []string{"uid", "creationTimestamp", "managedFields"} {
			delete(meta, key)
		}
	}
	cleaned, _ := clean(doc).(map[string]any)
	return cleaned
}

// clean drops resourceVersions and empty values, and masks times.
func clean(value any) any {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "resourceVersion")
		for key, child := range v {
			child = clean(child)
			if isEmpty(child) {
				delete(v, key)
			} else {
				v[key] = child
			}
		}
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil {
			return maskedTime
		}
	}
	return value
}

func isEmpty(value any) bool {
	m, ok := value.(map[string]any)
	return value == nil || ok && len(m) == 0
}

// diff lists the differences, sorted by path.
func diff(before, after map[string]any) []string {
	was, is := map[string]string{}, map[string]string{}
	flatten("", before, was)
	flatten("", after, is)
	var lines []string
	for _, path := range union(was, is) {
		old, had := was[path]
		now, has := is[path]
		switch {
		case had && !has:
			lines = append(lines, fmt.Sprintf("- %s: %s", path, old))
		case has && !had:
			lines = append(lines, fmt.Sprintf("+ %s: %s", path, now))
		case old != now:
			lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", path, old, now))
		}
	}
	return lines
}

// flatten fills leaves with path -> value; lists are leaves.
func flatten(path string, value any, leaves map[string]string) {
	m, ok := value.(map[string]any)
	if !ok {
		data, err := json.Marshal(value)
		if err != nil {
			data = []byte(err.Error())
		}
		leaves[path] = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(data))
		return
	}
	for key, child := range m {
		if strings.ContainsAny(key, "./") {
			key = "[" + key + "]"
		}
		flatten(strings.TrimPrefix(path+"."+key, "."), child, leaves)
	}
}

func union(a, b map[string]string) []string {
	keys := make([]string, 0, len(a)+len(b))
	for key := range a {
		keys = append(keys, key)
	}
	for key := range b {
		if _, both := a[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func toYAML(value any) string {
	data, err := yaml.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(string(data), "\n")
}
