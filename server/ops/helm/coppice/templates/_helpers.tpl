{{/* The name of everything: the release's, with the chart's unless that stands in it. */}}
{{- define "coppice.name" -}}
{{- if contains "coppice" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-coppice" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "coppice.selector" -}}
app.kubernetes.io/name: coppice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "coppice.labels" -}}
{{ include "coppice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "coppice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What follows the name of a pod: nodes find each other by names that outlive their addresses. */}}
{{- define "coppice.domain" -}}
{{ include "coppice.name" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* One port of the first `count` nodes: include "coppice.addresses" (list . count port). */}}
{{- define "coppice.addresses" -}}
{{- $root := index . 0 -}}
{{- $found := list -}}
{{- range $i := until (int (index . 1)) -}}
{{- $found = append $found (printf "%s-%d.%s:%d" (include "coppice.name" $root) $i (include "coppice.domain" $root) (int (index $ 2))) -}}
{{- end -}}
{{ join "," $found }}
{{- end }}

{{- define "coppice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "coppice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
