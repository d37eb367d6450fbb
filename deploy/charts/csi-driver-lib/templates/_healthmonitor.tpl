{{/* Not empty if csi-external-health-monitor-controller runs. */}}
{{- define "csi-driver-lib.healthMonitor" -}}
{{- if and .Values.healthMonitor.enabled (or (include "csi-driver-lib.can" (list . "GET_VOLUME_HEALTH")) (include "csi-driver-lib.can" (list . "VOLUME_CONDITION"))) }}yes{{ end -}}
{{- end -}}

{{/* Its container. It elects a leader in every form. */}}
{{- define "csi-driver-lib.healthMonitorContainer" -}}
{{- $values := .Values.healthMonitor -}}
- name: health-monitor
  {{- include "csi-driver-lib.image" (list . "csi-external-health-monitor-controller") | nindent 2 }}
  args:
  - --csi-address=/csi/csi.sock
  - --http-endpoint=:9819
  - --termination-grace-period={{ max 15 (int .Values.controller.terminationGracePeriodSeconds) }}s
  - --v={{ .Values.logLevel }}
  - --leader-election
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: health-monitor, containerPort: 9819}
  livenessProbe:
    httpGet: {path: /healthz/leader-election, port: health-monitor}
    timeoutSeconds: 5
  readinessProbe:
    httpGet: {path: /readyz, port: health-monitor}
    timeoutSeconds: 5
  {{- include "csi-driver-lib.unprivileged" . | nindent 2 }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  volumeMounts:
  - {name: socket-dir, mountPath: /csi}
  {{- include "csi-driver-lib.apiMount" . | nindent 2 }}
{{- end -}}

{{/* Its rights. */}}
{{- define "csi-driver-lib.health-monitor" -}}
{{- if include "csi-driver-lib.healthMonitor" . -}}
{{- $rules := `
- {apiGroups: [""], resources: [persistentvolumes], verbs: [list, watch]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [list, watch]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, list, patch]}
` -}}
{{- include "csi-driver-lib.clusterrole" (list . "health-monitor" $rules) }}
---
{{ include "csi-driver-lib.role" (list . "health-monitor" "- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, create, update]}") -}}
{{- end -}}
{{- end -}}
